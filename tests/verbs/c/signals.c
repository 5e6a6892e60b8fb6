/*
 * A signal's handler ends the program by exit(3) while it polls. Everything that had completed arrives.
 *
 *   cc -o signals signals.c -lrdmacm -libverbs
 *   ./signals server ADDRESS
 *   ./signals client ADDRESS own|other     (the stack on which the handler runs)
 *
 * The client prints how many messages had completed, and the server how many it received.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define PORT 7481
#define PATIENCE 50 /* seconds, of the whole program */
#define DEPTH 64

#define check(is_so) check_line((is_so), #is_so, __LINE__)

static void check_line(int is_so, const char *what, int line)
{
	if (is_so)
		return;
	fprintf(stderr, "line %d: not so: %s (errno: %s)\n", line, what, strerror(errno));
	_exit(1);
}

static struct rdma_event_channel *events;
static struct ibv_pd *domain;
static struct ibv_cq *completions;
static struct ibv_mr *region;
static uint64_t room[DEPTH];
static volatile uint64_t completed;

static struct rdma_cm_id *event(enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *found;
	struct rdma_cm_id *id;

	check(rdma_get_cm_event(events, &found) == 0);
	check(found->event == wanted);
	id = found->id;
	rdma_ack_cm_event(found);
	return id;
}

static void create_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr wanted = { .qp_type = IBV_QPT_RC,
					   .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH,
						    .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 8 } };

	check((domain = ibv_alloc_pd(id->verbs)) != NULL);
	check((completions = ibv_create_cq(id->verbs, 2 * DEPTH, NULL, NULL, 0)) != NULL);
	check((region = ibv_reg_mr(domain, room, sizeof(room), IBV_ACCESS_LOCAL_WRITE)) != NULL);
	wanted.send_cq = wanted.recv_cq = completions;
	check(rdma_create_qp(id, domain, &wanted) == 0);
}

static void post_receive(struct rdma_cm_id *id, uint64_t place)
{
	struct ibv_sge entry = { (uintptr_t)&room[place], sizeof(room[0]), region->lkey };
	struct ibv_recv_wr request = { .wr_id = place, .sg_list = &entry, .num_sge = 1 }, *bad;

	check(ibv_post_recv(id->qp, &request, &bad) == 0);
}

static void serve(struct sockaddr_in *address)
{
	struct rdma_conn_param parameters = { 0 };
	struct rdma_cm_id *listener, *id;
	struct ibv_wc found;
	uint64_t received = 0;

	check(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) == 0);
	check(rdma_bind_addr(listener, (struct sockaddr *)address) == 0 && rdma_listen(listener, 1) == 0);
	id = event(RDMA_CM_EVENT_CONNECT_REQUEST);
	create_queue_pair(id);
	for (uint64_t place = 0; place < DEPTH; place++)
		post_receive(id, place);
	check(rdma_accept(id, &parameters) == 0);
	event(RDMA_CM_EVENT_ESTABLISHED);
	for (;;) {
		int count = ibv_poll_cq(completions, 1, &found);

		check(count >= 0);
		if (count == 0)
			continue;
		if (found.status != IBV_WC_SUCCESS)
			break;
		check(room[found.wr_id] == received++);
		post_receive(id, found.wr_id);
	}
	event(RDMA_CM_EVENT_DISCONNECTED);
	printf("received %lu\n", (unsigned long)received);
	fflush(stdout);
	_exit(0);
}

static void leave(int signal)
{
	char text[64];
	int length = snprintf(text, sizeof(text), "completed %lu\n", (unsigned long)completed);

	(void)signal;
	check(write(STDOUT_FILENO, text, length) == length);
	exit(0);
}

static void take_signal(int on_other_stack)
{
	struct sigaction action = { .sa_handler = leave, .sa_flags = on_other_stack ? SA_ONSTACK : 0 };
	struct itimerval soon = { .it_value = { .tv_usec = 200000 } };
	stack_t other = { .ss_sp = malloc(1 << 20), .ss_size = 1 << 20 };

	check(sigaltstack(&other, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
	check(setitimer(ITIMER_REAL, &soon, NULL) == 0);
}

static void send_until_the_signal(struct sockaddr_in *address, int on_other_stack)
{
	struct rdma_conn_param parameters = { 0 };
	struct rdma_cm_id *id;

	check(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
	check(rdma_resolve_addr(id, NULL, (struct sockaddr *)address, 2000) == 0);
	event(RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(id, 2000) == 0);
	event(RDMA_CM_EVENT_ROUTE_RESOLVED);
	create_queue_pair(id);
	check(rdma_connect(id, &parameters) == 0);
	event(RDMA_CM_EVENT_ESTABLISHED);
	take_signal(on_other_stack);
	for (uint64_t posted = 0;;) {
		struct ibv_wc found[DEPTH];
		int count;

		while (posted - completed < DEPTH) {
			uint64_t number = posted;
			struct ibv_sge entry = { (uintptr_t)&number, sizeof(number), 0 };
			struct ibv_send_wr request = { .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_SEND,
						       .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }, *bad;

			check(ibv_post_send(id->qp, &request, &bad) == 0);
			posted++;
		}
		check((count = ibv_poll_cq(completions, DEPTH, found)) >= 0);
		for (int i = 0; i < count; i++)
			check(found[i].status == IBV_WC_SUCCESS);
		completed += count;
	}
}

int main(int count, char **words)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	check(count >= 3 && inet_pton(AF_INET, words[2], &address.sin_addr) == 1);
	check((events = rdma_create_event_channel()) != NULL);
	if (strcmp(words[1], "server") == 0) {
		alarm(PATIENCE);
		serve(&address);
	}
	check(count == 4);
	send_until_the_signal(&address, strcmp(words[3], "other") == 0);
}
