// Stores that are caught beside Go's handler of SIGSEGV, which makes panics of it.
package main

/*
#include <stdlib.h>
#include "caught.h"
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

type node struct{ value int }

// nulls counts the panics of loads from nil.
func nulls(count int) (caught int) {
	for i := 0; i < count; i++ {
		func() {
			defer func() {
				if recover() != nil {
					caught++
				}
			}()
			var nobody *node
			if i%2 == 1 {
				nobody = &node{}
			}
			caught += nobody.value
		}()
	}
	return
}

func main() {
	directory := C.CString(os.Args[1])
	defer C.free(unsafe.Pointer(directory))
	for kind := 0; kind < 4; kind++ {
		C.caught_open(directory, C.int(kind))
		for turn := 1; turn <= 6; turn++ {
			runtime.LockOSThread()
			C.caught_begin(C.int(turn))
			if nulls(2000) != 1000 {
				panic("panics are missing")
			}
			runtime.GC()
			C.caught_end(C.int(turn))
			runtime.UnlockOSThread()
		}
		C.caught_close()
	}
	fmt.Println("sound")
}
