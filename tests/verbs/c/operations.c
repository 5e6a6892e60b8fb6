/*
 * What no packaged program does: ibv_wr_*, two queue pairs on one shared receive queue, two threads on one queue pair and
 * completion queue, memory windows of type 2B, fork between two messages and while a thread polls, threads that are cancelled while
 * they poll, a full completion queue, queue pairs that the program makes and moves itself, a connection that is given up while it
 * is refused, an exit behind the last completion, memory that is gone before its region, requests right behind rdma_accept.
 *
 *   cc -o operations operations.c -lrdmacm -libverbs -lpthread
 *   ./operations TEST server ADDRESS
 *   ./operations TEST client ADDRESS
 *   TEST: wr|srq|threads|held|cancel|window|fork|beside|full|moves|refused|exit|freed|early
 *
 * Exit status 0 if everything was as it has to be; otherwise a line on standard error says what was not.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

#include "check.h"

#define PORT 7480
#define PATIENCE 50 /* seconds, of the whole program */
#define ROOM 8192
#define MESSAGES 13
#define MORE 100
#define RECEIVES 32
#define ROUNDS 5000

/* Where one side's memory is. */
struct place {
	uint64_t address;
	uint32_t key;
} __attribute__((packed));

/* One connection. */
struct end {
	struct rdma_cm_id *id;
	struct ibv_qp_ex *ex;
	struct place peer;
};

static struct ibv_pd *domain;
static int depth = 256;
static struct ibv_cq *completions;
static struct ibv_cq *send_completions; /* where they have a queue of their own */
static struct ibv_srq *shared;
static struct ibv_mr *region;
static uint8_t room[ROOM] __attribute__((aligned(64)));

static struct place own(void)
{
	return (struct place){ (uintptr_t)room, region->rkey };
}

/* What all connections of a process share. */
static void prepare(struct ibv_context *context)
{
	if (domain)
		return;
	check((domain = ibv_alloc_pd(context)) != NULL);
	check((completions = ibv_create_cq(context, depth, NULL, NULL, 0)) != NULL);
	region = ibv_reg_mr(domain, room, sizeof(room), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
	check(region != NULL);
}

static void create_queue_pair(struct end *end)
{
	struct ibv_qp_init_attr_ex wanted = {
		.qp_type = IBV_QPT_RC,
		.send_cq = send_completions ? send_completions : completions,
		.recv_cq = completions,
		.srq = shared,
		.cap = { .max_send_wr = 64, .max_recv_wr = shared ? 0 : 16, .max_send_sge = 2,
			 .max_recv_sge = shared ? 0 : 1, .max_inline_data = 32 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = domain,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				  IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_INV |
				  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
				  IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV,
	};

	check(rdma_create_qp_ex(end->id, &wanted) == 0);
	check((end->ex = ibv_qp_to_qp_ex(end->id->qp)) != NULL);
}

static void post_receive(struct ibv_qp *qp, uint64_t number, size_t offset, uint32_t length)
{
	struct ibv_sge entry = { (uintptr_t)room + offset, length, region->lkey };
	struct ibv_recv_wr request = { .wr_id = number, .sg_list = &entry, .num_sge = 1 }, *bad;

	check((qp ? ibv_post_recv(qp, &request, &bad) : ibv_post_srq_recv(shared, &request, &bad)) == 0);
}

/* The next completion, whatever it is. */
static struct ibv_wc next(void)
{
	struct ibv_wc found;
	int count;

	while ((count = ibv_poll_cq(completions, 1, &found)) == 0)
		;
	check(count == 1);
	return found;
}

/* The next completion, which has to be this one and a success. */
static struct ibv_wc succeeded(uint64_t number)
{
	struct ibv_wc found = next();

	if (found.status != IBV_WC_SUCCESS || found.wr_id != number) {
		fprintf(stderr, "completion %lu (%s) and not %lu\n", (unsigned long)found.wr_id,
			ibv_wc_status_str(found.status), (unsigned long)number);
		exit(1);
	}
	return found;
}

static void send_octets(struct ibv_qp *qp, uint64_t number, const void *octets, uint32_t length)
{
	struct ibv_sge entry = { (uintptr_t)octets, length, 0 };
	struct ibv_send_wr request = { .wr_id = number, .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_SEND,
				       .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }, *bad;

	check(ibv_post_send(qp, &request, &bad) == 0);
}

static void to_address(struct sockaddr_in *out, const char *text)
{
	memset(out, 0, sizeof(*out));
	out->sin_family = AF_INET;
	out->sin_port = htons(PORT);
	check(inet_pton(AF_INET, text, &out->sin_addr) == 1);
}

static struct rdma_conn_param parameters(struct place *place)
{
	return (struct rdma_conn_param){ .private_data = place, .private_data_len = sizeof(*place),
					 .responder_resources = 8, .initiator_depth = 8, .retry_count = 7,
					 .rnr_retry_count = 7 };
}

static struct end connected(const char *address, void (*before)(struct end *))
{
	struct end end = { 0 };
	struct rdma_conn_param wanted;
	struct sockaddr_in server;
	struct place place;

	to_address(&server, address);
	check(rdma_create_id(NULL, &end.id, NULL, RDMA_PS_TCP) == 0);
	check(rdma_resolve_addr(end.id, NULL, (struct sockaddr *)&server, 5000) == 0);
	check(rdma_resolve_route(end.id, 5000) == 0);
	prepare(end.id->verbs);
	create_queue_pair(&end);
	if (before)
		before(&end);
	place = own();
	wanted = parameters(&place);
	check(rdma_connect(end.id, &wanted) == 0);
	check(end.id->event->param.conn.private_data_len >= sizeof(place));
	memcpy(&end.peer, end.id->event->param.conn.private_data, sizeof(place));
	return end;
}

static struct rdma_cm_id *listening(const char *address)
{
	struct rdma_cm_id *id;
	struct sockaddr_in own_address;

	to_address(&own_address, address);
	check(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	check(rdma_bind_addr(id, (struct sockaddr *)&own_address) == 0);
	check(rdma_listen(id, 4) == 0);
	return id;
}

static struct end accepted(struct rdma_cm_id *listener, void (*before)(struct end *))
{
	struct end end = { 0 };
	struct rdma_conn_param wanted;
	struct place place;

	check(rdma_get_request(listener, &end.id) == 0);
	check(end.id->event->param.conn.private_data_len >= sizeof(place));
	memcpy(&end.peer, end.id->event->param.conn.private_data, sizeof(place));
	prepare(end.id->verbs);
	if (before)
		before(&end);
	if (!end.id->qp)
		create_queue_pair(&end);
	place = own();
	wanted = parameters(&place);
	check(rdma_accept(end.id, &wanted) == 0);
	return end;
}

/* wr: every kind of request by ibv_wr_*. The server's memory: 0 to 1008 are written, 2048 is a counter, 4096 receives. */
static void wr_receives(struct end *end)
{
	if (!end->id->qp)
		create_queue_pair(end);
	for (uint64_t number = 0; number < 3; number++)
		post_receive(end->id->qp, number, 4096 + number * 64, 64);
}

static void wr_server(struct end end)
{
	struct ibv_wc found;
	int i;

	found = succeeded(0);
	check(found.opcode == IBV_WC_RECV && found.byte_len == 16);
	check(memcmp(room + 4096, "two parts, joint", 16) == 0);
	found = succeeded(1);
	check(found.opcode == IBV_WC_RECV_RDMA_WITH_IMM && (found.wc_flags & IBV_WC_WITH_IMM));
	check(found.imm_data == htonl(0x01020304));
	for (i = 0; i < 1000; i++)
		check(room[i] == (uint8_t)(i * 7));
	check(memcmp(room + 1000, "inlined!", 8) == 0);
	check(*(uint64_t *)(room + 2048) == 77);
	/* Had the abandoned Send been sent, it would have arrived before. */
	found = succeeded(2);
	check(found.byte_len == 3 && memcmp(room + 4096 + 128, "end", 3) == 0);
	send_octets(end.id->qp, 9, "right", 5);
	succeeded(9);
}

static void wr_client(struct end end)
{
	struct ibv_qp_ex *ex = end.ex;
	struct ibv_sge parts[2] = { { (uintptr_t)room + 3000, 4, region->lkey },
				    { (uintptr_t)room + 3100, 12, region->lkey } };
	char inlined[8];
	int i;

	for (i = 0; i < 1000; i++)
		room[i] = (uint8_t)(i * 7);
	ibv_wr_start(ex);
	ex->wr_id = 10;
	ex->wr_flags = 0;
	ibv_wr_rdma_write(ex, end.peer.key, end.peer.address);
	ibv_wr_set_sge(ex, region->lkey, (uintptr_t)room, 1000);
	ex->wr_id = 11;
	ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	memcpy(inlined, "inlined!", 8);
	ibv_wr_rdma_write(ex, end.peer.key, end.peer.address + 1000);
	ibv_wr_set_inline_data(ex, inlined, 8);
	check(ibv_wr_complete(ex) == 0);
	/* Inline data is the program's again as soon as it is posted. */
	memset(inlined, 0, 8);
	succeeded(11);

	ibv_wr_start(ex);
	ex->wr_id = 12;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_read(ex, end.peer.key, end.peer.address);
	ibv_wr_set_sge(ex, region->lkey, (uintptr_t)room + 1024, 1008);
	check(ibv_wr_complete(ex) == 0);
	check(succeeded(12).opcode == IBV_WC_RDMA_READ);
	check(memcmp(room, room + 1024, 1000) == 0 && memcmp(room + 2024, "inlined!", 8) == 0);

	for (i = 0; i < 3; i++) {
		static const uint64_t was[] = { 0, 5, 10 };

		ibv_wr_start(ex);
		ex->wr_id = 13;
		ex->wr_flags = IBV_SEND_SIGNALED;
		if (i < 2)
			ibv_wr_atomic_fetch_add(ex, end.peer.key, end.peer.address + 2048, 5);
		else
			ibv_wr_atomic_cmp_swp(ex, end.peer.key, end.peer.address + 2048, 10, 77);
		ibv_wr_set_sge(ex, region->lkey, (uintptr_t)room + 2200, 8);
		check(ibv_wr_complete(ex) == 0);
		check(succeeded(13).opcode == (i < 2 ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP));
		check(*(uint64_t *)(room + 2200) == was[i]);
	}

	memcpy(room + 3000, "two ", 4);
	memcpy(room + 3100, "parts, joint", 12);
	ibv_wr_start(ex);
	ex->wr_id = 14;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 2, parts);
	check(ibv_wr_complete(ex) == 0);
	succeeded(14);

	ibv_wr_start(ex);
	ex->wr_id = 15;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write_imm(ex, end.peer.key, end.peer.address, htonl(0x01020304));
	ibv_wr_set_sge(ex, region->lkey, (uintptr_t)room, 8);
	check(ibv_wr_complete(ex) == 0);
	succeeded(15);

	ibv_wr_start(ex);
	ex->wr_id = 16;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, region->lkey, (uintptr_t)room, 8);
	ibv_wr_abort(ex);

	send_octets(end.id->qp, 17, "end", 3);
	/* Its completion and the answer's have no order. */
	for (i = 0; i < 2; i++) {
		struct ibv_wc found = next();

		check(found.status == IBV_WC_SUCCESS && (found.wr_id == 17 || found.wr_id == 0));
	}
	check(memcmp(room + 4096, "right", 5) == 0);
}

/* srq: two queue pairs fill one shared receive queue until it runs low. */
#define ANSWERED 900
static int answered;

static void srq_create(struct end *end)
{
	struct ibv_srq_init_attr wanted = { .attr = { .max_wr = RECEIVES, .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = RECEIVES / 4 };

	(void)end;
	if (shared)
		return;
	check((shared = ibv_create_srq(domain, &wanted)) != NULL);
	for (uint64_t number = 0; number < RECEIVES; number++)
		post_receive(NULL, number, number * 64, 64);
	check(ibv_modify_srq(shared, &limit, IBV_SRQ_LIMIT) == 0);
}

/* Takes so many messages from each queue pair, in their order; posts the receives again if asked. */
static void srq_take(struct end ends[2], uint32_t count[2], uint32_t messages, int again)
{
	uint32_t taken;

	for (taken = 0; taken < 2 * messages;) {
		struct ibv_wc found = next();
		uint32_t said[2];
		int which = found.qp_num == ends[1].id->qp->qp_num;

		if (found.wr_id == ANSWERED) {
			check(found.status == IBV_WC_SUCCESS);
			answered++;
			continue;
		}
		taken++;
		check(found.status == IBV_WC_SUCCESS && found.opcode == IBV_WC_RECV && found.byte_len == sizeof(said));
		check(found.qp_num == ends[which].id->qp->qp_num);
		memcpy(said, room + found.wr_id * 64, sizeof(said));
		check(said[0] == (uint32_t)which && said[1] == count[which]);
		count[which]++;
		if (again)
			post_receive(NULL, found.wr_id, found.wr_id * 64, 64);
	}
}

static void srq_server(struct rdma_cm_id *listener)
{
	struct end ends[2];
	uint32_t count[2] = { 0, 0 };
	struct ibv_async_event event;
	int which;

	/* The second connects when the first is connected. */
	for (which = 0; which < 2; which++)
		ends[which] = accepted(listener, srq_create);
	srq_take(ends, count, MESSAGES, 0);
	check(count[0] == MESSAGES && count[1] == MESSAGES);
	do {
		check(ibv_get_async_event(ends[0].id->verbs, &event) == 0);
		ibv_ack_async_event(&event);
		/* A private device has no link before the other end has opened its own. */
	} while (event.event_type == IBV_EVENT_PORT_ERR || event.event_type == IBV_EVENT_PORT_ACTIVE);
	check(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == shared);
	for (uint64_t number = 0; number < 2 * MESSAGES; number++)
		post_receive(NULL, number, number * 64, 64);
	for (which = 0; which < 2; which++)
		send_octets(ends[which].id->qp, ANSWERED, "more", 4);
	srq_take(ends, count, MORE, 1);
	for (which = 0; which < 2; which++)
		send_octets(ends[which].id->qp, ANSWERED, "done", 4);
	/* Those of the first two were among the messages, or are not yet. */
	while (answered < 4)
		answered += succeeded(ANSWERED).wr_id == ANSWERED;
}

/* The receives that were used are those of the first messages, whatever their order: all have the same memory size. */
static void srq_client_receives(struct end *end)
{
	post_receive(end->id->qp, 500, 4096, 64);
	post_receive(end->id->qp, 501, 4160, 64);
}

static void srq_client(const char *address)
{
	struct end ends[2];
	uint32_t said[2], limit = MESSAGES, first = 0;
	int which, phase;

	for (which = 0; which < 2; which++)
		ends[which] = connected(address, srq_client_receives);
	for (phase = 0; phase < 2; phase++) {
		uint32_t answers = 0, sent = 0, wanted;

		for (said[1] = first; said[1] < limit; said[1]++) {
			for (which = 0; which < 2; which++) {
				said[0] = which;
				send_octets(ends[which].id->qp, 600, said, sizeof(said));
			}
			/* At most two are under way, and an answer may be among them. */
			for (wanted = sent + 2; sent < wanted;) {
				struct ibv_wc found = next();

				check(found.status == IBV_WC_SUCCESS);
				if (found.wr_id == 600)
					sent++;
				else
					answers++;
			}
		}
		while (answers < 2) {
			struct ibv_wc found = next();

			check(found.status == IBV_WC_SUCCESS && found.wr_id == (uint64_t)(500 + phase));
			answers++;
		}
		check(memcmp(room + 4096 + 64 * phase, phase ? "done" : "more", 4) == 0);
		first = limit;
		limit += MORE;
	}
}

/* threads: two of them post on one queue pair and reap from one completion queue. */
static struct end threads_end;
static atomic_uchar seen[2][ROUNDS];
static atomic_uint finished;

static int reap(void)
{
	struct ibv_wc found[4];
	int i, count = ibv_poll_cq(completions, 4, found);

	check(count >= 0);
	for (i = 0; i < count; i++) {
		uint32_t thread = found[i].wr_id >> 32, round = (uint32_t)found[i].wr_id;

		check(found[i].status == IBV_WC_SUCCESS && thread < 2 && round < ROUNDS);
		/* Each completion is delivered once. */
		check(atomic_fetch_add(&seen[thread][round], 1) == 0);
		atomic_fetch_add(&finished, 1);
	}
	return count;
}

static void *post_and_reap(void *argument)
{
	uint64_t thread = (uintptr_t)argument;
	uint64_t round;

	for (round = 0; round < ROUNDS; round++) {
		uint64_t value = round + 1;
		struct ibv_sge entry = { (uintptr_t)&value, sizeof(value), 0 };
		struct ibv_send_wr *bad, request = {
			.wr_id = thread << 32 | round, .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
			.wr.rdma = { threads_end.peer.address + 64 * thread, threads_end.peer.key },
		};
		int failed;

		while ((failed = ibv_post_send(threads_end.id->qp, &request, &bad)) == ENOMEM)
			reap();
		check(failed == 0);
	}
	while (atomic_load(&finished) < 2 * ROUNDS)
		reap();
	return NULL;
}

static void threads_client(struct end end)
{
	pthread_t threads[2];
	uintptr_t number;

	threads_end = end;
	for (number = 0; number < 2; number++)
		check(pthread_create(&threads[number], NULL, post_and_reap, (void *)number) == 0);
	for (number = 0; number < 2; number++)
		check(pthread_join(threads[number], NULL) == 0);
	check(atomic_load(&finished) == 2 * ROUNDS);
	send_octets(end.id->qp, 17, "end", 3);
	succeeded(17);
}

/* held: a request holds its place in the send queue until its completion is taken, so a completion queue of the same length
 * never overflows, however fast the requests complete. */
#define PLACES 64

static int write_word(struct ibv_qp *qp, struct place to, uint64_t number)
{
	struct ibv_sge entry = { (uintptr_t)&number, sizeof(number), 0 };
	struct ibv_send_wr *bad = NULL, request = {
		.wr_id = number, .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE, .wr.rdma = { to.address, to.key },
	};
	int failed = ibv_post_send(qp, &request, &bad);

	check(bad == (failed ? &request : NULL));
	return failed;
}

static void held_server(struct end end)
{
	(void)end;
	succeeded(0);
	check(*(uint64_t *)room == 3 * PLACES + 1);
}

static void held_client(struct end end)
{
	struct ibv_qp_attr wanted = { .qp_state = IBV_QPS_ERR };
	uint64_t posted = 0, taken = 0;
	struct ibv_wc left;
	int round, i;

	for (round = 0; round < 3; round++) {
		while (posted < taken + PLACES)
			check(write_word(end.id->qp, end.peer, posted++) == 0);
		/* By now they have completed. */
		usleep(20000);
		check(write_word(end.id->qp, end.peer, posted) == ENOMEM);
		/* Each that is taken makes room for one, and a list of two is not posted in part. */
		succeeded(taken++);
		ibv_wr_start(end.ex);
		for (i = 0; i < 2; i++) {
			end.ex->wr_id = posted + i;
			end.ex->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(end.ex, end.peer.key, end.peer.address);
			ibv_wr_set_inline_data(end.ex, &posted, sizeof(posted));
		}
		check(ibv_wr_complete(end.ex) == ENOMEM);
		if (round < 2) {
			check(write_word(end.id->qp, end.peer, posted++) == 0);
			check(write_word(end.id->qp, end.peer, posted) == ENOMEM);
		}
		while (taken < posted)
			succeeded(taken++);
	}
	send_octets(end.id->qp, 17, "end", 3);
	succeeded(17);
	/* Completions that nobody has taken go with a reset. */
	for (i = 0; i < 3; i++)
		check(write_word(end.id->qp, end.peer, posted - 1) == 0);
	check(ibv_modify_qp(end.id->qp, &wanted, IBV_QP_STATE) == 0);
	usleep(20000);
	wanted.qp_state = IBV_QPS_RESET;
	check(ibv_modify_qp(end.id->qp, &wanted, IBV_QP_STATE) == 0);
	check(ibv_poll_cq(completions, 1, &left) == 0);
}

/* cancel: threads that poll, and so turn the engine, are cancelled one after the other, and a thread beside them goes on. */
static atomic_uint polls;
static atomic_int is_enough;
/* The victim may end now. */
static atomic_int is_cancelled;

static void *poll_until_cancelled(void *argument)
{
	/* The calls of the library are not async-cancel-safe: such a thread disables cancellation around them. It enables it only when
	 * it is cancelled already. The C library's signal, which it sends to a thread that it finds enabled, may come when the thread
	 * is disabled again, and ends it then. */
	int is_asynchronous = argument != NULL, former;

	if (is_asynchronous) {
		check(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &former) == 0);
		check(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &former) == 0);
	}
	for (;;) {
		reap();
		atomic_fetch_add(&polls, 1);
		if (is_asynchronous) {
			check(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &former) == 0);
			check(former == PTHREAD_CANCEL_DISABLE);
			if (atomic_load(&is_cancelled))
				pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &former);
		}
		pthread_testcancel();
	}
	return NULL;
}

static void *write_until_enough(void *argument)
{
	uint64_t round;

	(void)argument;
	/* Each Write has completed before the next: which of the threads reaps it is open. */
	for (round = 0; !atomic_load(&is_enough); round++) {
		uint64_t value = round + 1;
		struct ibv_sge entry = { (uintptr_t)&value, sizeof(value), 0 };
		struct ibv_send_wr *bad, request = {
			.wr_id = round % ROUNDS, .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
			.wr.rdma = { threads_end.peer.address, threads_end.peer.key },
		};

		atomic_store(&seen[0][round % ROUNDS], 0);
		check(ibv_post_send(threads_end.id->qp, &request, &bad) == 0);
		while (atomic_load(&finished) <= round)
			reap();
	}
	return NULL;
}

/* Waits until a counter has moved on by this much. */
static void await_more(atomic_uint *counter, unsigned int more)
{
	unsigned int before = atomic_load(counter);

	while (atomic_load(counter) - before < more)
		usleep(100);
}

static void cancel_client(struct end end)
{
	pthread_t writer, victim;
	void *result;
	int round;

	threads_end = end;
	check(pthread_create(&writer, NULL, write_until_enough, NULL) == 0);
	for (round = 0; round < 40; round++) {
		atomic_store(&is_cancelled, 0);
		check(pthread_create(&victim, NULL, poll_until_cancelled, round % 2 ? &polls : NULL) == 0);
		await_more(&polls, 200);
		check(pthread_cancel(victim) == 0);
		atomic_store(&is_cancelled, 1);
		check(pthread_join(victim, &result) == 0 && result == PTHREAD_CANCELED);
		await_more(&finished, 50);
	}
	atomic_store(&is_enough, 1);
	check(pthread_join(writer, NULL) == 0);
	send_octets(end.id->qp, 17, "end", 3);
	succeeded(17);
}

static void cancel_server(struct end end)
{
	(void)end;
	succeeded(0);
	check(*(uint64_t *)room >= 40 * 50);
}

static void one_receive(struct end *end)
{
	if (!end->id->qp)
		create_queue_pair(end);
	post_receive(end->id->qp, 0, 4096, 64);
}

static void threads_server(struct end end)
{
	(void)end;
	succeeded(0);
	/* The last Write of each thread came last. */
	check(*(uint64_t *)room == ROUNDS && *(uint64_t *)(room + 64) == ROUNDS);
}

/* window: of type 2B, bound to a part of a region and invalidated by the peer. */
static void window_receives(struct end *end)
{
	one_receive(end);
	post_receive(end->id->qp, 1, 4160, 64);
}

static void window_server(struct end end)
{
	struct ibv_mw *window;
	struct ibv_send_wr *bad, bind = { .wr_id = 20, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc found = { 0 };
	struct place place = { (uintptr_t)room + 1024, 0 };
	int i;

	check((window = ibv_alloc_mw(domain, IBV_MW_TYPE_2)) != NULL);
	place.key = ibv_inc_rkey(window->rkey);
	bind.bind_mw.mw = window;
	bind.bind_mw.rkey = place.key;
	bind.bind_mw.bind_info = (struct ibv_mw_bind_info){ region, place.address, 1024, IBV_ACCESS_REMOTE_WRITE };
	check(ibv_post_send(end.id->qp, &bind, &bad) == 0);
	check(succeeded(20).opcode == IBV_WC_BIND_MW);
	send_octets(end.id->qp, 21, &place, sizeof(place));
	/* The completion of this and the client's message have no order. */
	for (i = 0; i < 2; i++) {
		struct ibv_wc either = next();

		check(either.status == IBV_WC_SUCCESS && (either.wr_id == 21 || either.wr_id == 0));
		if (either.wr_id == 0)
			found = either;
	}
	check((found.wc_flags & IBV_WC_WITH_INV) && found.invalidated_rkey == place.key);
	for (i = 0; i < 1024; i++)
		check(room[1024 + i] == (uint8_t)(i + 3));
	check(room[1023] == 0 && room[2048] == 0);
	send_octets(end.id->qp, 22, "again", 5);
	/* The peer's next Write is refused, which ends the connection: the second receive comes back unused. */
	for (i = 0; i < 2; i++) {
		found = next();
		if (found.wr_id == 22)
			continue;
		check(found.wr_id == 1 && found.status == IBV_WC_WR_FLUSH_ERR);
		break;
	}
	check(i < 2);
	for (i = 0; i < 1024; i++)
		check(room[1024 + i] == (uint8_t)(i + 3));
}

static void window_client(struct end end)
{
	struct ibv_sge entry = { (uintptr_t)room, 1024, region->lkey };
	struct ibv_send_wr *bad, write = { .wr_id = 30, .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_send_wr invalidate = { .wr_id = 31, .opcode = IBV_WR_SEND_WITH_INV,
					  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr read = { .wr_id = 32, .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
				    .send_flags = IBV_SEND_SIGNALED };
	struct place place;
	struct ibv_wc found;
	int i, failed = 0;

	succeeded(0);
	memcpy(&place, room + 4096, sizeof(place));
	for (i = 0; i < 1024; i++)
		room[i] = (uint8_t)(i + 3);
	write.wr.rdma.remote_addr = place.address;
	write.wr.rdma.rkey = place.key;
	write.next = &invalidate;
	invalidate.invalidate_rkey = place.key;
	check(ibv_post_send(end.id->qp, &write, &bad) == 0);
	/* The completion of this and the server's answer have no order. */
	for (i = 0; i < 2; i++) {
		found = next();
		check(found.status == IBV_WC_SUCCESS && (found.wr_id == 31 || found.wr_id == 1));
	}
	memset(room, 0xEE, 1024);
	write.next = &read;
	read.wr.rdma.remote_addr = end.peer.address;
	read.wr.rdma.rkey = end.peer.key;
	/* A refused Write has completed, as one does that is on its way; what comes behind it has not. */
	if (ibv_post_send(end.id->qp, &write, &bad) == 0)
		do {
			found = next();
			failed = found.wr_id == 32 && found.status != IBV_WC_SUCCESS;
			check(failed || found.status != IBV_WC_SUCCESS);
		} while (!failed);
}

/* fork: a child of a started process may exec or exit; each of its calls fails, and none disturbs its parent. */
static void fork_in_child(struct end *end)
{
	struct ibv_sge entry = { (uintptr_t)room, 8, region->lkey };
	struct ibv_send_wr *bad_send, send = { .wr_id = 40, .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_SEND,
					       .send_flags = IBV_SEND_SIGNALED };
	struct ibv_recv_wr *bad_receive, receive = { .wr_id = 41, .sg_list = &entry, .num_sge = 1 };
	struct ibv_device_attr device;
	struct rdma_cm_id *id;
	struct ibv_wc found;

	errno = 0;
	check(ibv_alloc_pd(end->id->verbs) == NULL && errno == EIO);
	errno = 0;
	check(ibv_reg_mr(domain, room, sizeof(room), IBV_ACCESS_LOCAL_WRITE) == NULL && errno == EIO);
	errno = 0;
	check(ibv_create_cq(end->id->verbs, 16, NULL, NULL, 0) == NULL && errno == EIO);
	check(ibv_query_device(end->id->verbs, &device) == EIO);
	check(ibv_post_send(end->id->qp, &send, &bad_send) == EIO);
	check(ibv_post_recv(end->id->qp, &receive, &bad_receive) == EIO);
	for (int poll = 0; poll < 1000; poll++)
		check(ibv_poll_cq(completions, 1, &found) < 0);
	check(ibv_dereg_mr(region) == EIO);
	check(ibv_destroy_qp(end->id->qp) == EIO);
	errno = 0;
	check(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == -1 && errno == EIO);
	errno = 0;
	check(rdma_disconnect(end->id) == -1 && errno == EIO);
}

static void fork_and_wait(struct end *end, int by_exec)
{
	pid_t child = fork();
	int status;

	check(child >= 0);
	if (child == 0) {
		/* The parent's alarm is not inherited. */
		alarm(PATIENCE);
		if (by_exec) {
			execl("/bin/true", "true", (char *)NULL);
			exit(1);
		}
		fork_in_child(end);
		/* With the handlers of the library's own exit: they must not end the parent's connections. */
		exit(0);
	}
	check(waitpid(child, &status, 0) == child);
	check(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* beside: a thread polls while children are forked, maybe in the middle of a turn of the engine. Its traffic goes on, and the
 * children do not turn the engine: its memory is not theirs. */
static void beside_client(struct end end)
{
	pthread_t writer;
	int round;

	threads_end = end;
	check(pthread_create(&writer, NULL, write_until_enough, NULL) == 0);
	for (round = 0; round < 20; round++) {
		await_more(&finished, 50);
		fork_and_wait(&end, round % 4 == 3);
	}
	await_more(&finished, 50);
	atomic_store(&is_enough, 1);
	check(pthread_join(writer, NULL) == 0);
	send_octets(end.id->qp, 17, "end", 3);
	succeeded(17);
}

static void beside_server(struct end end)
{
	(void)end;
	succeeded(0);
	check(*(uint64_t *)room >= 20 * 50);
}

static void fork_receives(struct end *end)
{
	one_receive(end);
	post_receive(end->id->qp, 1, 4160, 64);
}

/* A message to and fro before, between and behind the two children. */
static void fork_client(struct end end)
{
	int round, i;

	for (round = 0; round < 3; round++) {
		if (round > 0)
			fork_and_wait(&end, round == 2);
		send_octets(end.id->qp, 50, "to", 2);
		/* The completion of this and the server's answer have no order. */
		for (i = 0; i < 2; i++) {
			struct ibv_wc found = next();

			check(found.status == IBV_WC_SUCCESS && (found.wr_id == 50 || found.wr_id < 2));
			if (found.wr_id < 2)
				post_receive(end.id->qp, found.wr_id, 4096 + 64 * found.wr_id, 64);
		}
	}
}

static void fork_server(struct end end)
{
	int round;

	for (round = 0; round < 3; round++) {
		uint64_t which = round % 2;

		check(succeeded(which).byte_len == 2);
		post_receive(end.id->qp, which, 4096 + 64 * which, 64);
		send_octets(end.id->qp, 51, "fro", 3);
		succeeded(51);
	}
}

/* full: completions that nobody reaps fill their queue, and an event says so. What fitted is there; the rest is flushed. */
static void full_receives(struct end *end)
{
	if (!end->id->qp) {
		/* The event has to name the other one. */
		check((send_completions = ibv_create_cq(end->id->verbs, 64, NULL, NULL, 0)) != NULL);
		create_queue_pair(end);
	}
	check(completions->cqe < 16);
	for (uint64_t number = 0; number < 16; number++)
		post_receive(end->id->qp, number, 4096 + 64 * number, 64);
}

static void full_server(struct end end)
{
	struct ibv_async_event event;
	uint64_t number;
	int flushed = 0;

	do {
		check(ibv_get_async_event(end.id->verbs, &event) == 0);
		ibv_ack_async_event(&event);
		/* A private device has no link before the other end has opened its own. */
	} while (event.event_type == IBV_EVENT_PORT_ERR || event.event_type == IBV_EVENT_PORT_ACTIVE);
	check(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == completions);
	for (number = 0; number < 16; number++) {
		struct ibv_wc found = next();

		check(found.wr_id == number);
		if (found.status == IBV_WC_SUCCESS) {
			check(flushed == 0 && room[4096 + 64 * number] == (uint8_t)number);
			continue;
		}
		flushed++;
	}
	check(flushed > 0 && 16 - flushed >= completions->cqe);
}

static void full_client(struct end end)
{
	uint64_t number;
	int failed = 0;

	for (number = 0; number < 16; number++) {
		uint8_t octet = (uint8_t)number;

		send_octets(end.id->qp, 100 + number, &octet, 1);
	}
	for (number = 0; number < 16; number++) {
		struct ibv_wc found = next();

		/* Each of them completes, in order; behind a failure none succeeds. */
		check(found.wr_id == 100 + number);
		failed |= found.status != IBV_WC_SUCCESS;
		check(!failed || found.status != IBV_WC_SUCCESS);
	}
}

/* moves: the program makes its queue pair and moves it from state to state as rdma_init_qp_attr says. */
static struct ibv_qp *own_queue_pair(void)
{
	struct ibv_qp_init_attr wanted = { .qp_type = IBV_QPT_RC, .send_cq = completions, .recv_cq = completions,
					   .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
						    .max_recv_sge = 1, .max_inline_data = 32 } };
	struct ibv_qp *qp = ibv_create_qp(domain, &wanted);

	check(qp != NULL);
	return qp;
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr made;
	struct ibv_qp_attr found;

	check(ibv_query_qp(qp, &found, IBV_QP_STATE, &made) == 0);
	check(found.qp_state == qp->state);
	return found.qp_state;
}

static void move(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state to)
{
	struct ibv_qp_attr wanted = { .qp_state = to };
	int mask;

	check(rdma_init_qp_attr(id, &wanted, &mask) == 0);
	check(ibv_modify_qp(qp, &wanted, mask) == 0);
	check(state_of(qp) == to);
}

/* The next event of an identifier, which has to be this one. */
static void event_comes(struct rdma_cm_id *id, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;

	check(rdma_get_cm_event(id->channel, &event) == 0);
	check(event->event == wanted && event->status == 0);
	check(rdma_ack_cm_event(event) == 0);
}

static void moves_end(struct rdma_cm_id *id, struct ibv_qp *qp)
{
	check(id->qp == NULL);
	check(state_of(qp) == IBV_QPS_ERR);
	check(ibv_destroy_qp(qp) == 0);
	check(rdma_destroy_id(id) == 0);
}

static void moves_server(struct rdma_cm_id *listener)
{
	struct ibv_qp_attr named = { .qp_state = IBV_QPS_RTR, .dest_qp_num = 7 };
	struct ibv_qp_attr early = { .qp_state = IBV_QPS_RTS };
	struct rdma_conn_param wanted;
	struct rdma_cm_id *id;
	struct place place;
	struct ibv_qp *qp;

	check(rdma_get_request(listener, &id) == 0);
	prepare(id->verbs);
	qp = own_queue_pair();
	move(id, qp, IBV_QPS_INIT);
	post_receive(qp, 1, 0, 64);
	/* Only rdma_cm connects, and no state is left out. */
	check(ibv_modify_qp(qp, &named, IBV_QP_STATE | IBV_QP_DEST_QPN) == EINVAL);
	check(ibv_modify_qp(qp, &early, IBV_QP_STATE) == EINVAL);
	check(state_of(qp) == IBV_QPS_INIT);
	move(id, qp, IBV_QPS_RTR);
	move(id, qp, IBV_QPS_RTS);
	place = own();
	wanted = parameters(&place);
	wanted.qp_num = qp->qp_num;
	check(rdma_accept(id, &wanted) == 0);
	check(succeeded(1).byte_len == 5 && memcmp(room, "moved", 5) == 0);
	send_octets(qp, 2, "too", 3);
	succeeded(2);
	event_comes(id, RDMA_CM_EVENT_DISCONNECTED);
	moves_end(id, qp);
}

static void moves_client(const char *address)
{
	struct rdma_conn_param wanted;
	struct sockaddr_in server;
	struct rdma_cm_id *id;
	struct place place;
	struct ibv_qp *qp;
	int left;

	to_address(&server, address);
	check(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	check(rdma_resolve_addr(id, NULL, (struct sockaddr *)&server, 5000) == 0);
	check(rdma_resolve_route(id, 5000) == 0);
	prepare(id->verbs);
	qp = own_queue_pair();
	move(id, qp, IBV_QPS_INIT);
	post_receive(qp, 1, 0, 64);
	place = own();
	wanted = parameters(&place);
	/* There is no queue pair with this number, and no connection without one, even if there is one queue pair. */
	wanted.qp_num = qp->qp_num + 1;
	check(rdma_connect(id, &wanted) == -1 && errno == EINVAL);
	wanted.qp_num = 0;
	check(rdma_connect(id, &wanted) == -1 && errno == EINVAL);
	check(rdma_connect(id, NULL) == -1 && errno == EINVAL);
	wanted.qp_num = qp->qp_num;
	check(rdma_connect(id, &wanted) == 0);
	check(id->event->event == RDMA_CM_EVENT_ESTABLISHED && state_of(qp) == IBV_QPS_RTS);
	send_octets(qp, 2, "moved", 5);
	/* Its completion and the answer's have no order. */
	for (left = 2; left > 0; left--) {
		struct ibv_wc found = next();

		check(found.status == IBV_WC_SUCCESS && (found.wr_id == 1 || found.wr_id == 2));
	}
	check(memcmp(room, "too", 3) == 0);
	check(rdma_disconnect(id) == 0);
	moves_end(id, qp);
}

/* refused: the client disconnects while it is refused and would connect again. */
static void refused_client(const char *address)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct end end = { 0 };
	struct rdma_conn_param wanted;
	struct sockaddr_in nobody;
	struct pollfd waiting;
	struct place place;

	check(channel != NULL);
	to_address(&nobody, address);
	nobody.sin_port = htons(PORT + 1);
	check(rdma_create_id(channel, &end.id, NULL, RDMA_PS_TCP) == 0);
	check(rdma_resolve_addr(end.id, NULL, (struct sockaddr *)&nobody, 5000) == 0);
	event_comes(end.id, RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(end.id, 5000) == 0);
	event_comes(end.id, RDMA_CM_EVENT_ROUTE_RESOLVED);
	prepare(end.id->verbs);
	create_queue_pair(&end);
	place = own();
	wanted = parameters(&place);
	check(rdma_connect(end.id, &wanted) == 0);
	usleep(50000);
	check(rdma_disconnect(end.id) == 0);
	event_comes(end.id, RDMA_CM_EVENT_DISCONNECTED);
	/* Nothing comes behind that, be it of another attempt. */
	waiting = (struct pollfd){ .fd = channel->fd, .events = POLLIN };
	check(poll(&waiting, 1, 400) == 0);
	rdma_destroy_qp(end.id);
	check(rdma_destroy_id(end.id) == 0);
	rdma_destroy_event_channel(channel);
}

/* unbound: a listener that was not bound to an address gets a port. */
static void unbound_listens(void)
{
	struct rdma_cm_id *id;

	check(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	check(rdma_listen(id, 4) == 0);
	check(rdma_get_src_port(id) != 0);
	check(rdma_listen(id, 4) == -1 && errno == EINVAL);
	check(rdma_destroy_id(id) == 0);
}

/* exit: the client ends as soon as the last of its messages has completed, the only one that is signalled. None is lost. */
static void exit_receives(struct end *end)
{
	if (!end->id->qp)
		create_queue_pair(end);
	for (uint64_t number = 0; number < 16; number++)
		post_receive(end->id->qp, number, 256 * number, 256);
}

static void exit_server(void)
{
	for (uint64_t number = 0; number < 16; number++) {
		check(succeeded(number).byte_len == 256);
		for (int i = 0; i < 256; i++)
			check(room[256 * number + i] == (uint8_t)(number + i));
	}
}

static void exit_client(struct end end)
{
	for (uint64_t number = 0; number < 16; number++) {
		struct ibv_sge entry = { (uintptr_t)room + 256 * number, 256, region->lkey };
		struct ibv_send_wr request = { .wr_id = number, .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_SEND,
					       .send_flags = number == 15 ? IBV_SEND_SIGNALED : 0 }, *bad;

		for (int i = 0; i < 256; i++)
			room[256 * number + i] = (uint8_t)(number + i);
		check(ibv_post_send(end.id->qp, &request, &bad) == 0);
	}
	succeeded(15);
}

/* freed: memory of the client goes before its region does. That hurts neither while nobody uses it. */
static void freed_client(struct end end)
{
	size_t octets = 1 << 20;
	void *memory = mmap(NULL, octets, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *gone;

	check(memory != MAP_FAILED);
	check((gone = ibv_reg_mr(domain, memory, octets, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL);
	check(munmap(memory, octets) == 0);
	send_octets(end.id->qp, 1, "here", 4);
	succeeded(1);
	check(ibv_dereg_mr(gone) == 0);
	send_octets(end.id->qp, 2, "still", 5);
	succeeded(2);
}

static void freed_server(void)
{
	check(succeeded(0).byte_len == 4);
	check(succeeded(1).byte_len == 5);
}

/* early: a server with an event channel posts right behind rdma_accept, which waits for nothing. */
#define EARLY 50

static void early_server(const char *address)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in own_address;
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener;

	check(channel != NULL);
	to_address(&own_address, address);
	check(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	check(rdma_bind_addr(listener, (struct sockaddr *)&own_address) == 0);
	check(rdma_listen(listener, 4) == 0);
	for (uint64_t number = 0; number < EARLY; number++) {
		struct rdma_event_channel *own_channel = rdma_create_event_channel();
		struct rdma_conn_param wanted;
		struct end end = { 0 };
		struct place place;

		check(own_channel != NULL);
		check(rdma_get_cm_event(channel, &event) == 0);
		check(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		end.id = event->id;
		check(rdma_ack_cm_event(event) == 0);
		/* The next connection may be requested before this one has ended here. */
		check(rdma_migrate_id(end.id, own_channel) == 0);
		prepare(end.id->verbs);
		create_queue_pair(&end);
		place = own();
		wanted = parameters(&place);
		check(rdma_accept(end.id, &wanted) == 0);
		send_octets(end.id->qp, number, "early", 5);
		event_comes(end.id, RDMA_CM_EVENT_ESTABLISHED);
		succeeded(number);
		event_comes(end.id, RDMA_CM_EVENT_DISCONNECTED);
		rdma_destroy_qp(end.id);
		check(rdma_destroy_id(end.id) == 0);
		rdma_destroy_event_channel(own_channel);
	}
}

static void early_client(const char *address)
{
	for (int number = 0; number < EARLY; number++) {
		struct end end = connected(address, one_receive);

		check(succeeded(0).byte_len == 5);
		check(rdma_disconnect(end.id) == 0);
		rdma_destroy_qp(end.id);
		check(rdma_destroy_id(end.id) == 0);
	}
}

int main(int argc, char **argv)
{
	const char *test, *address;
	int is_server;

	if (argc != 4) {
		fprintf(stderr, "usage: operations wr|srq|threads|held|cancel|window|fork|beside|full|moves|refused|exit|freed|early "
				"server|client ADDRESS\n");
		return 2;
	}
	test = argv[1];
	is_server = strcmp(argv[2], "server") == 0;
	address = argv[3];
	alarm(PATIENCE);
	if (strcmp(test, "srq") == 0) {
		if (is_server)
			srq_server(listening(address));
		else
			srq_client(address);
	} else if (strcmp(test, "wr") == 0) {
		if (is_server)
			wr_server(accepted(listening(address), wr_receives));
		else
			wr_client(connected(address, one_receive));
	} else if (strcmp(test, "threads") == 0) {
		if (is_server)
			threads_server(accepted(listening(address), one_receive));
		else
			threads_client(connected(address, NULL));
	} else if (strcmp(test, "held") == 0) {
		depth = PLACES;
		if (is_server)
			held_server(accepted(listening(address), one_receive));
		else
			held_client(connected(address, NULL));
	} else if (strcmp(test, "cancel") == 0) {
		if (is_server)
			cancel_server(accepted(listening(address), one_receive));
		else
			cancel_client(connected(address, NULL));
	} else if (strcmp(test, "beside") == 0) {
		if (is_server)
			beside_server(accepted(listening(address), one_receive));
		else
			beside_client(connected(address, NULL));
	} else if (strcmp(test, "window") == 0) {
		if (is_server)
			window_server(accepted(listening(address), window_receives));
		else
			window_client(connected(address, window_receives));
	} else if (strcmp(test, "fork") == 0) {
		if (is_server)
			fork_server(accepted(listening(address), fork_receives));
		else
			fork_client(connected(address, fork_receives));
	} else if (strcmp(test, "full") == 0) {
		depth = is_server ? 4 : 256;
		if (is_server)
			full_server(accepted(listening(address), full_receives));
		else
			full_client(connected(address, NULL));
	} else if (strcmp(test, "moves") == 0) {
		if (is_server)
			moves_server(listening(address));
		else
			moves_client(address);
	} else if (strcmp(test, "refused") == 0) {
		if (is_server) {
			accepted(listening(address), NULL);
		} else {
			unbound_listens();
			refused_client(address);
			connected(address, NULL);
		}
	} else if (strcmp(test, "exit") == 0) {
		if (is_server) {
			accepted(listening(address), exit_receives);
			exit_server();
		} else {
			exit_client(connected(address, NULL));
		}
	} else if (strcmp(test, "freed") == 0) {
		if (is_server) {
			accepted(listening(address), exit_receives);
			freed_server();
		} else {
			freed_client(connected(address, NULL));
		}
	} else if (strcmp(test, "early") == 0) {
		if (is_server)
			early_server(address);
		else
			early_client(address);
	} else {
		fprintf(stderr, "there is no test '%s'\n", test);
		return 2;
	}
	printf("%s: right\n", test);
	return 0;
}
