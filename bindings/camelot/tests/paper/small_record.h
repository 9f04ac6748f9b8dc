/* The paper's records (Camelot, section 3.3). */
#ifndef SMALL_RECORD_H
#define SMALL_RECORD_H

#define SIZE_OF_SMALL 32
#define ARRAY_SIZE 100
#define INDEX_OUT_OF_BOUNDS 1

typedef struct {
    char data[SIZE_OF_SMALL];
} small_record_t;

#endif
