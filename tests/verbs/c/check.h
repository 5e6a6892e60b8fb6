/* What the programs of this folder share: a condition that has to be so, and the next completion of a queue. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <infiniband/verbs.h>

#define SOON 30 /* seconds, for what comes in a moment */

#define check(is_so) check_line((is_so), #is_so, __LINE__)

/* Ends the program with what is not so. */
static inline void check_line(int is_so, const char *what, int line)
{
	if (is_so)
		return;
	fprintf(stderr, "line %d: not so: %s (errno: %s)\n", line, what, strerror(errno));
	exit(1);
}

static inline struct ibv_wc next_of(struct ibv_cq *queue)
{
	time_t end = time(NULL) + SOON;
	struct ibv_wc found;
	int count;

	while ((count = ibv_poll_cq(queue, 1, &found)) == 0 && time(NULL) < end)
		;
	check(count == 1);
	return found;
}

#endif
