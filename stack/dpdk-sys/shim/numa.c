/*
 * The functions of libnuma that EAL and vhost call, over the kernel's system calls. Debian's static libnuma cannot be
 * linked into a shared library, and a shared one would have to be on every machine that runs uwarp.
 *
 * A part of shim.c, so that the linker has it before it comes to DPDK's archives.
 */

#include <numa.h>
#include <numaif.h>
#include <stdlib.h>

/* The kernel has 1024 nodes at most (CONFIG_NODES_SHIFT). */
#define NODES 1024
#define WORD_BITS (8 * sizeof(unsigned long))

long get_mempolicy(int *mode, unsigned long *mask, unsigned long nodes, void *address, unsigned flags)
{
	return syscall(SYS_get_mempolicy, mode, mask, nodes, address, flags);
}

long set_mempolicy(int mode, const unsigned long *mask, unsigned long nodes)
{
	return syscall(SYS_set_mempolicy, mode, mask, nodes);
}

/* A container's filter of system calls may forbid it. */
int numa_available(void)
{
	return get_mempolicy(NULL, NULL, 0, NULL, 0) < 0 && (errno == ENOSYS || errno == EPERM) ? -1 : 0;
}

struct bitmask *numa_allocate_nodemask(void)
{
	struct bitmask *mask = calloc(1, sizeof(*mask) + NODES / 8);

	/* As libnuma, whose callers expect a mask. */
	if (mask == NULL)
		abort();
	mask->size = NODES;
	mask->maskp = (unsigned long *)(mask + 1);
	return mask;
}

void numa_bitmask_free(struct bitmask *mask)
{
	free(mask);
}

void numa_set_localalloc(void)
{
	set_mempolicy(MPOL_PREFERRED, NULL, 0);
}

void numa_set_preferred(int node)
{
	unsigned long mask[NODES / WORD_BITS] = {0};

	if (node < 0 || node >= NODES) {
		numa_set_localalloc();
		return;
	}
	mask[node / WORD_BITS] |= 1UL << node % WORD_BITS;
	/* The kernel takes one less than it is told. */
	set_mempolicy(MPOL_PREFERRED, mask, NODES + 1);
}
