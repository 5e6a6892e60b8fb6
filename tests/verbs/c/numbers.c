/*
 * What a device promises is there at the same time, and an endpoint takes no more descriptors than with rdma-core.
 *
 *   cc -o numbers numbers.c -lrdmacm -libverbs
 *   ./numbers held ADDRESS        the promised numbers of objects, all at once, and no more of any kind but those without a limit
 *   ./numbers endpoints ADDRESS   300 endpoints with queues of their own and 1,024 descriptors: two for each
 *   ./numbers leak ADDRESS        more connections than there are queues, each of which leaves its queue behind
 *
 * Exit status 0 if everything was as it has to be; otherwise a line on standard error says what was not.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <sys/resource.h>

#include <rdma/rdma_cma.h>

#include "check.h"

#define ENDPOINTS 300
#define DESCRIPTORS 1024
#define LEAKS 1500

static int descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;
	check(folder != NULL);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static struct rdma_cm_id *endpoint(struct rdma_event_channel *channel, const char *address)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7480) };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	check(inet_pton(AF_INET, address, &to.sin_addr) == 1);
	check(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	check(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
	check(!rdma_get_cm_event(channel, &event));
	check(event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	rdma_ack_cm_event(event);
	return id;
}

/* As many objects as are promised. */
#define HOLD(type, objects, promised, made) \
	type **objects = calloc(promised, sizeof(*objects)); \
	for (int i = 0; i < (promised); i++) \
		check((objects[i] = (made)) != NULL)
/* One more is refused. */
#define NO_MORE(made) check((errno = 0, made) == NULL && errno == ENOMEM)
#define FREE(objects, promised, freed) \
	for (int i = 0; i < (promised); i++) \
		check(!freed(objects[i]))

static void held(struct ibv_context *context)
{
	static char memory[64];
	struct ibv_device_attr most;
	check(!ibv_query_device(context, &most));
	printf("max_qp %d max_cq %d max_mr %d max_mw %d max_srq %d max_pd %d\n", most.max_qp, most.max_cq, most.max_mr,
	       most.max_mw, most.max_srq, most.max_pd);
	check(most.max_qp >= 4096 && most.max_cq >= 2 * most.max_qp && most.max_mr >= 20000);

	HOLD(struct ibv_pd, domains, most.max_pd, ibv_alloc_pd(context));
	struct ibv_pd *pd = domains[0];
	HOLD(struct ibv_mr, regions, most.max_mr, ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
	HOLD(struct ibv_mw, windows, most.max_mw, ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	HOLD(struct ibv_cq, queues, most.max_cq, ibv_create_cq(context, 1, NULL, NULL, 0));
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 1, .max_sge = 1 } };
	HOLD(struct ibv_srq, receives, most.max_srq, ibv_create_srq(pd, &shared));
	struct ibv_qp_init_attr wanted = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
#define WITH(first, second) (wanted.send_cq = queues[first], wanted.recv_cq = queues[second], &wanted)
	HOLD(struct ibv_qp, pairs, most.max_qp, ibv_create_qp(pd, WITH(2 * i, 2 * i + 1)));

	check(ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE) == NULL);
	NO_MORE(ibv_create_cq(context, 1, NULL, NULL, 0));
	NO_MORE(ibv_create_qp(pd, WITH(0, 1)));

	FREE(pairs, most.max_qp, ibv_destroy_qp);
	FREE(receives, most.max_srq, ibv_destroy_srq);
	FREE(queues, most.max_cq, ibv_destroy_cq);
	FREE(windows, most.max_mw, ibv_dealloc_mw);
	FREE(regions, most.max_mr, ibv_dereg_mr);
	FREE(domains, most.max_pd, ibv_dealloc_pd);
}

static void endpoints(struct rdma_event_channel *channel, const char *address)
{
	struct rdma_cm_id *ids[ENDPOINTS];
	int before = descriptors();
	for (int i = 0; i < ENDPOINTS; i++) {
		struct ibv_qp_init_attr wanted = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
		ids[i] = endpoint(channel, address);
		check(!rdma_create_qp(ids[i], NULL, &wanted));
		check(ids[i]->send_cq_channel && ids[i]->recv_cq_channel);
	}
	int each = (descriptors() - before) / ENDPOINTS;
	printf("%d descriptors for each of %d endpoints\n", each, ENDPOINTS);
	check(each <= 2);
	for (int i = 0; i < ENDPOINTS; i++) {
		rdma_destroy_qp(ids[i]);
		check(!rdma_destroy_id(ids[i]));
	}
	check(descriptors() <= before);
}

/* Its queue cannot be destroyed before the queue pair, and is not destroyed behind it. */
static void leak(struct rdma_event_channel *channel, const char *address)
{
	struct ibv_pd *pd = NULL;
	for (int i = 0; i < LEAKS; i++) {
		struct rdma_cm_id *id = endpoint(channel, address);
		if (!pd)
			check((pd = ibv_alloc_pd(id->verbs)) != NULL);
		struct ibv_cq *queue = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
		check(queue != NULL);
		struct ibv_qp_init_attr wanted = {
			.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 }
		};
		check(!rdma_create_qp(id, pd, &wanted));
		check(ibv_destroy_cq(queue) == EBUSY);
		rdma_destroy_qp(id);
		check(!rdma_destroy_id(id));
	}
}

int main(int count, char **words)
{
	check(count == 3);
	struct rlimit limit;
	check(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = DESCRIPTORS;
	check(!setrlimit(RLIMIT_NOFILE, &limit));
	struct rdma_event_channel *channel = rdma_create_event_channel();
	check(channel != NULL);
	/* The device is open from here on. */
	struct rdma_cm_id *first = endpoint(channel, words[2]);
	if (!strcmp(words[1], "held"))
		held(first->verbs);
	else if (!strcmp(words[1], "endpoints"))
		endpoints(channel, words[2]);
	else if (!strcmp(words[1], "leak"))
		leak(channel, words[2]);
	else
		return 2;
	check(!rdma_destroy_id(first));
	rdma_destroy_event_channel(channel);
	printf("%s: right\n", words[1]);
	return 0;
}
