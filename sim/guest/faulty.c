// Has the kernel of a guest fail as no key of sysrq has it (cargo xtask vm), by what is written to
// /sys/module/faulty/parameters.

#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/uaccess.h>

static noinline int deeper(volatile int *depth)
{
	volatile char frame[256];

	frame[*depth % sizeof(frame)] = *depth;
	*depth += 1;
	// Always, and the compiler does not know.
	return *depth > 0 ? deeper(depth) + frame[0] : 0;
}

static void forever(void *unused)
{
	local_irq_disable();
	for (;;)
		cpu_relax();
}

// A fault by its name: it does not return.
static int fail(const char *text, const struct kernel_param *param)
{
	int depth = 0;

	if (sysfs_streq(text, "null"))
		WRITE_ONCE(*(volatile long *)NULL, 1);
	else if (sysfs_streq(text, "stack"))
		return deeper(&depth);
	else if (sysfs_streq(text, "hang"))
		on_each_cpu(forever, NULL, 0);
	else
		return -EINVAL;
	return 0;
}

// A wild store: an address in memory and a word, both hexadecimal. Memory that the kernel has not mapped for
// writing cannot be hit, and says so.
static int store(const char *text, const struct kernel_param *param)
{
	unsigned long long address, word;

	if (sscanf(text, "%llx %llx", &address, &word) != 2 || address % 8 || !pfn_valid(address >> PAGE_SHIFT))
		return -EINVAL;
	__put_kernel_nofault(phys_to_virt(address), &word, unsigned long long, refused);
	return 0;
refused:
	return -EFAULT;
}

static const struct kernel_param_ops faults = { .set = fail };
static const struct kernel_param_ops stores = { .set = store };

module_param_cb(fault, &faults, NULL, 0200);
module_param_cb(store, &stores, NULL, 0200);
MODULE_DESCRIPTION("Faults of a kernel, on demand");
MODULE_LICENSE("Dual MIT/GPL");
