/*
 * Queue pairs of unreliable datagrams (UD) on a device of RoCE.
 *
 *   cc -o datagrams datagrams.c -libverbs
 *   UWARP_DEVICE=roce ./datagrams TEST
 *   TEST: masks|messages|builder|keys|lost|lengths|shared|events|flush|wrong|processes
 *
 * Exit status 0 if everything was as it has to be; otherwise a line on standard error says what was not.
 */
#include <sys/wait.h>

#include "side.h"

#define IN (ROOM / 2)
#define GRH 40
#define KEY 0x11223344

#define KEYED_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)

/* The way to this host. */
static struct ibv_ah *here(struct side *of)
{
	struct ibv_ah_attr vector = { .port_num = 1, .is_global = 1 };
	struct ibv_ah *made;

	check(ibv_query_gid(of->context, 1, 0, &vector.grh.dgid) == 0);
	check((made = ibv_create_ah(of->domain, &vector)) != NULL);
	return made;
}

static struct side *side(struct ibv_context *context, int is_shared)
{
	struct side *made = side_of(context, IBV_QPT_UD, is_shared);

	made->ah = here(made);
	return made;
}

static int modified(struct side *of, enum ibv_qp_state state, int mask)
{
	struct ibv_qp_attr wanted = { .qp_state = state, .port_num = 1, .qkey = KEY };

	return ibv_modify_qp(of->qp, &wanted, mask);
}

static void ready(struct side *of)
{
	check(modified(of, IBV_QPS_INIT, KEYED_MASK) == 0);
	check(modified(of, IBV_QPS_RTR, IBV_QP_STATE) == 0);
	check(modified(of, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

static struct side *ready_side(struct ibv_context *context)
{
	struct side *made = side(context, 0);

	ready(made);
	return made;
}

/* Posts a receive of so many octets, in two entries. */
static int receive(struct side *of, uint64_t number, uint32_t octets)
{
	struct ibv_sge entries[2] = { { (uintptr_t)of->room + IN, GRH / 2, of->region->lkey },
				      { (uintptr_t)of->room + IN + GRH / 2, octets - GRH / 2, of->region->lkey } };
	struct ibv_recv_wr request = { .wr_id = number, .sg_list = entries, .num_sge = 2 }, *bad;

	memset(of->room + IN, 0xee, ROOM - IN);
	return of->shared ? ibv_post_srq_recv(of->shared, &request, &bad) : ibv_post_recv(of->qp, &request, &bad);
}

struct sending {
	uint32_t octets, key, number;
	struct ibv_ah *ah;
	enum ibv_wr_opcode opcode;
	unsigned int flags;
};

static int post(struct side *of, uint64_t number, struct sending how)
{
	struct ibv_sge entry = { (uintptr_t)of->room, how.octets, of->region->lkey };
	struct ibv_send_wr request = { .wr_id = number, .sg_list = &entry, .num_sge = 1, .opcode = how.opcode,
				       .send_flags = IBV_SEND_SIGNALED | how.flags, .imm_data = htobe32(0xabcdef01) };
	struct ibv_send_wr *bad;

	request.wr.ud.ah = how.ah;
	request.wr.ud.remote_qpn = how.number;
	request.wr.ud.remote_qkey = how.key;
	return ibv_post_send(of->qp, &request, &bad);
}

static struct sending to(struct side *from, struct side *peer)
{
	return (struct sending){ LENGTH, KEY, peer->qp->qp_num, from->ah, IBV_WR_SEND, 0 };
}

/* A datagram with this octet in it arrives in a receive that is posted. */
static struct ibv_wc arrives(struct side *to, uint64_t number, uint32_t from, uint8_t octet, uint32_t octets)
{
	struct ibv_wc found = completes(to->received, to, number, IBV_WC_SUCCESS);

	check(found.opcode == IBV_WC_RECV && found.byte_len == GRH + octets && found.src_qp == from);
	check(found.wc_flags & IBV_WC_GRH);
	/* The IP header of IPv4 is at the end of what stands in front. */
	check(to->room[IN + 20] == 0x45 && to->room[IN + 32] == 10 && to->room[IN + 36] == 10);
	for (uint32_t at = 0; at < octets; at++)
		check(to->room[IN + GRH + at] == octet);
	check(to->room[IN + GRH + octets] == 0xee);
	return found;
}

static void message(struct side *from, struct side *peer, uint8_t octet)
{
	check(receive(peer, octet, GRH + LENGTH) == 0);
	memset(from->room, octet, LENGTH);
	check(post(from, octet, to(from, peer)) == 0);
	completes(from->sent, from, octet, IBV_WC_SUCCESS);
	arrives(peer, octet, from->qp->qp_num, octet, LENGTH);
}

static void masks(void)
{
	struct side *one = side(opened(), 0);
	struct ibv_qp_init_attr made;
	struct ibv_qp_attr found;

	for (int bit = 1; bit <= IBV_QP_RATE_LIMIT; bit <<= 1)
		if ((bit & KEYED_MASK) && bit != IBV_QP_STATE)
			check(modified(one, IBV_QPS_INIT, KEYED_MASK & ~bit) == EINVAL);
	check(modified(one, IBV_QPS_INIT, KEYED_MASK | IBV_QP_ACCESS_FLAGS) == EINVAL);
	check(modified(one, IBV_QPS_RTR, IBV_QP_STATE) == EINVAL);
	check(post(one, 1, to(one, one)) == EINVAL);
	check(modified(one, IBV_QPS_INIT, KEYED_MASK) == 0);
	check(post(one, 1, to(one, one)) == EINVAL);
	check(modified(one, IBV_QPS_RTR, IBV_QP_STATE | IBV_QP_AV) == EINVAL);
	check(modified(one, IBV_QPS_RTR, IBV_QP_STATE) == 0);
	check(post(one, 1, to(one, one)) == EINVAL);
	check(modified(one, IBV_QPS_RTS, IBV_QP_STATE) == EINVAL);
	check(modified(one, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	check(ibv_query_qp(one->qp, &found, IBV_QP_STATE | IBV_QP_QKEY, &made) == 0);
	check(found.qp_state == IBV_QPS_RTS && found.qkey == KEY && made.qp_type == IBV_QPT_UD);
	message(one, one, 1);
	check(modified(one, IBV_QPS_RESET, IBV_QP_STATE) == 0);
	check(post(one, 1, to(one, one)) == EINVAL);
	ready(one);
	message(one, one, 2);
	destroy(one);
}

static void messages(void)
{
	struct side *one = ready_side(opened()), *other = ready_side(opened());
	struct sending how;
	struct ibv_wc found;
	struct ibv_ah *back;

	message(one, other, 1);
	message(other, one, 2);
	message(one, one, 3);
	/* Immediate data, a solicited event, and octets that are copied. */
	check(receive(other, 4, GRH + LENGTH) == 0);
	memset(one->room, 4, LENGTH);
	how = to(one, other);
	how.opcode = IBV_WR_SEND_WITH_IMM;
	how.flags = IBV_SEND_INLINE | IBV_SEND_SOLICITED;
	check(post(one, 4, how) == 0);
	completes(one->sent, one, 4, IBV_WC_SUCCESS);
	found = arrives(other, 4, one->qp->qp_num, 4, LENGTH);
	check((found.wc_flags & IBV_WC_WITH_IMM) && be32toh(found.imm_data) == 0xabcdef01);
	/* Nothing but that, of an odd length too. */
	for (uint32_t octets = 0; octets < 6; octets++) {
		check(receive(other, octets, GRH + octets) == 0);
		how.octets = octets;
		how.flags = 0;
		check(post(one, octets, how) == 0);
		completes(one->sent, one, octets, IBV_WC_SUCCESS);
		found = arrives(other, octets, one->qp->qp_num, 4, octets);
	}
	/* The way back. */
	back = ibv_create_ah_from_wc(other->domain, &found, (struct ibv_grh *)(other->room + IN), 1);
	check(back != NULL);
	check(receive(one, 5, GRH + LENGTH) == 0);
	memset(other->room, 5, LENGTH);
	how = to(other, one);
	how.ah = back;
	how.number = found.src_qp;
	check(post(other, 5, how) == 0);
	completes(other->sent, other, 5, IBV_WC_SUCCESS);
	arrives(one, 5, other->qp->qp_num, 5, LENGTH);
	check(ibv_destroy_ah(back) == 0);
	destroy(one);
	destroy(other);
}

static void builder(void)
{
	struct side *one = ready_side(opened()), *other = ready_side(one->context);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(one->qp);
	struct ibv_wc found;

	check(qp != NULL);
	check(receive(other, 1, GRH + LENGTH) == 0);
	memset(one->room, 1, LENGTH);
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(qp, htobe32(77));
	ibv_wr_set_ud_addr(qp, one->ah, other->qp->qp_num, KEY);
	ibv_wr_set_sge(qp, one->region->lkey, (uintptr_t)one->room, LENGTH);
	check(ibv_wr_complete(qp) == 0);
	completes(one->sent, one, 1, IBV_WC_SUCCESS);
	found = arrives(other, 1, one->qp->qp_num, 1, LENGTH);
	check((found.wc_flags & IBV_WC_WITH_IMM) && be32toh(found.imm_data) == 77);
	check(receive(other, 2, GRH + LENGTH) == 0);
	ibv_wr_start(qp);
	qp->wr_id = 2;
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, one->ah, other->qp->qp_num, KEY);
	ibv_wr_set_inline_data(qp, one->room, LENGTH);
	check(ibv_wr_complete(qp) == 0);
	completes(one->sent, one, 2, IBV_WC_SUCCESS);
	arrives(other, 2, one->qp->qp_num, 1, LENGTH);
	/* To nobody. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, one->region->lkey, (uintptr_t)one->room, LENGTH);
	check(ibv_wr_complete(qp) == EINVAL);
	destroy(one);
	destroy(other);
}

static void keys(void)
{
	struct side *one = ready_side(opened()), *other = ready_side(one->context);
	struct ibv_qp_attr wanted = { .qkey = KEY + 1 };
	struct sending how = to(one, other);

	check(receive(other, 1, GRH + LENGTH) == 0);
	how.key = KEY + 1;
	check(post(one, 1, how) == 0);
	completes(one->sent, one, 1, IBV_WC_SUCCESS);
	stays_silent(other->received, 200);
	/* That with the highest bit stands for the own one. */
	how.key = 0x80000000;
	memset(one->room, 2, LENGTH);
	check(post(one, 2, how) == 0);
	completes(one->sent, one, 2, IBV_WC_SUCCESS);
	arrives(other, 1, one->qp->qp_num, 2, LENGTH);
	check(ibv_modify_qp(other->qp, &wanted, IBV_QP_QKEY) == 0);
	check(receive(other, 3, GRH + LENGTH) == 0);
	check(post(one, 3, how) == 0);
	completes(one->sent, one, 3, IBV_WC_SUCCESS);
	stays_silent(other->received, 200);
	how.key = KEY + 1;
	check(post(one, 4, how) == 0);
	completes(one->sent, one, 4, IBV_WC_SUCCESS);
	arrives(other, 3, one->qp->qp_num, 2, LENGTH);
	destroy(one);
	destroy(other);
}

static void lost(void)
{
	struct side *one = ready_side(opened()), *other = side(one->context, 0);
	struct sending how = to(one, other);

	/* Before the peer receives, without a receive, to nobody, and to a place where nobody is. */
	check(modified(other, IBV_QPS_INIT, KEYED_MASK) == 0);
	check(receive(other, 9, GRH + LENGTH) == 0);
	check(post(one, 1, how) == 0);
	completes(one->sent, one, 1, IBV_WC_SUCCESS);
	stays_silent(other->received, 200);
	check(modified(other, IBV_QPS_RTR, IBV_QP_STATE) == 0);
	memset(one->room, 9, LENGTH);
	check(post(one, 2, how) == 0);
	completes(one->sent, one, 2, IBV_WC_SUCCESS);
	arrives(other, 9, one->qp->qp_num, 9, LENGTH);
	check(post(one, 3, how) == 0);
	completes(one->sent, one, 3, IBV_WC_SUCCESS);
	how.number ^= 0x4000;
	check(post(one, 4, how) == 0);
	completes(one->sent, one, 4, IBV_WC_SUCCESS);
	how.number |= 0xff0000;
	check(post(one, 5, how) == 0);
	completes(one->sent, one, 5, IBV_WC_SUCCESS);
	/* They are on their way. */
	stays_silent(other->received, 200);
	message(one, other, 6);
	check(modified(other, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	message(other, one, 7);
	destroy(other);
	how.number = one->qp->qp_num ^ 1;
	check(post(one, 8, how) == 0);
	completes(one->sent, one, 8, IBV_WC_SUCCESS);
	stays_silent(one->received, 200);
	destroy(one);
}

static void lengths(void)
{
	struct side *one = ready_side(opened()), *other = ready_side(one->context);
	struct sending how = to(one, other);
	struct ibv_port_attr port;

	check(ibv_query_port(one->context, 1, &port) == 0);
	how.octets = 128 << port.active_mtu;
	memset(one->room, 3, how.octets);
	check(receive(other, 1, GRH + how.octets) == 0);
	check(post(one, 1, how) == 0);
	completes(one->sent, one, 1, IBV_WC_SUCCESS);
	arrives(other, 1, one->qp->qp_num, 3, how.octets);
	how.octets++;
	check(post(one, 2, how) == EMSGSIZE);
	/* One that is longer than its receive is lost, and the receive stays. */
	check(receive(other, 3, GRH + LENGTH) == 0);
	how.octets = LENGTH + 1;
	check(post(one, 3, how) == 0);
	completes(one->sent, one, 3, IBV_WC_SUCCESS);
	stays_silent(other->received, 200);
	how.octets = LENGTH;
	check(post(one, 4, how) == 0);
	completes(one->sent, one, 4, IBV_WC_SUCCESS);
	arrives(other, 3, one->qp->qp_num, 3, LENGTH);
	how.number = 1 << 24;
	check(post(one, 5, how) == EINVAL);
	how.number = other->qp->qp_num;
	how.opcode = IBV_WR_RDMA_WRITE;
	check(post(one, 5, how) == EINVAL);
	how.opcode = IBV_WR_SEND;
	how.ah = NULL;
	check(post(one, 5, how) == EINVAL);
	destroy(one);
	destroy(other);
}

static void shared(void)
{
	struct side *one = ready_side(opened()), *other = side(one->context, 1);
	struct ibv_async_event event;

	ready(other);
	message(one, other, 1);
	message(one, other, 2);
	check(receive(other, 3, GRH + LENGTH) == 0);
	check(modified(other, IBV_QPS_ERR, IBV_QP_STATE) == 0);
	check(ibv_get_async_event(one->context, &event) == 0);
	check(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == other->qp);
	ibv_ack_async_event(&event);
	destroy(other);
	destroy(one);
}

static void events(void)
{
	struct side *one = ready_side(opened()), *other = ready_side(one->context);
	struct sending how = to(one, other);
	struct ibv_cq *queue;
	void *user;

	check(ibv_req_notify_cq(other->received, 1) == 0);
	check(receive(other, 1, GRH + LENGTH) == 0 && receive(other, 2, GRH + LENGTH) == 0);
	check(post(one, 1, how) == 0);
	how.flags = IBV_SEND_SOLICITED;
	check(post(one, 2, how) == 0);
	check(ibv_get_cq_event(other->channel, &queue, &user) == 0 && queue == other->received);
	ibv_ack_cq_events(queue, 1);
	completes(other->received, other, 1, IBV_WC_SUCCESS);
	completes(other->received, other, 2, IBV_WC_SUCCESS);
	destroy(one);
	destroy(other);
}

static void flush(void)
{
	struct side *one = ready_side(opened());

	check(receive(one, 1, GRH + LENGTH) == 0 && receive(one, 2, GRH + LENGTH) == 0);
	check(modified(one, IBV_QPS_ERR, IBV_QP_STATE) == 0);
	completes(one->received, one, 1, IBV_WC_WR_FLUSH_ERR);
	completes(one->received, one, 2, IBV_WC_WR_FLUSH_ERR);
	check(post(one, 3, to(one, one)) == 0);
	completes(one->sent, one, 3, IBV_WC_WR_FLUSH_ERR);
	check(receive(one, 4, GRH + LENGTH) == 0);
	completes(one->received, one, 4, IBV_WC_WR_FLUSH_ERR);
	check(modified(one, IBV_QPS_RESET, IBV_QP_STATE) == 0);
	ready(one);
	message(one, one, 5);
	destroy(one);
}

/* Memory that is not the program's to use ends the queue pair, and nothing of it is touched. */
static void wrong(void)
{
	struct side *one = ready_side(opened()), *other = ready_side(one->context);
	struct ibv_sge entry = { (uintptr_t)one->room, LENGTH, 0xdeadbe };
	struct ibv_send_wr sends = { .wr_id = 1, .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr receives = { .wr_id = 2, .sg_list = &entry, .num_sge = 1 }, *worse;
	struct ibv_async_event event;

	sends.wr.ud.ah = one->ah;
	sends.wr.ud.remote_qpn = other->qp->qp_num;
	sends.wr.ud.remote_qkey = KEY;
	check(ibv_post_send(one->qp, &sends, &bad) == 0);
	completes(one->sent, one, 1, IBV_WC_LOC_PROT_ERR);
	check(ibv_get_async_event(one->context, &event) == 0);
	check(event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == one->qp);
	ibv_ack_async_event(&event);
	check(modified(one, IBV_QPS_RESET, IBV_QP_STATE) == 0);
	ready(one);
	/* A region that is gone when the datagram comes. */
	entry.length = GRH + LENGTH;
	check(ibv_post_recv(other->qp, &receives, &worse) == 0);
	check(receive(other, 3, GRH + LENGTH) == 0);
	check(post(one, 4, to(one, other)) == 0);
	completes(one->sent, one, 4, IBV_WC_SUCCESS);
	completes(other->received, other, 2, IBV_WC_LOC_PROT_ERR);
	completes(other->received, other, 3, IBV_WC_WR_FLUSH_ERR);
	for (int at = IN; at < ROOM; at++)
		check(other->room[at] == 0xee);
	destroy(other);
	message(one, one, 5);
	destroy(one);
}

/* Two programs of one host. */
static void processes(void)
{
	int to_child[2], to_parent[2], status, child;
	uint32_t peer;
	struct side *one;
	struct sending how;

	check(pipe(to_child) == 0 && pipe(to_parent) == 0);
	check((child = fork()) >= 0);
	one = ready_side(opened());
	for (int number = 0; number < 8; number++)
		check(receive(one, number, GRH + LENGTH) == 0);
	check(write(child ? to_child[1] : to_parent[1], &one->qp->qp_num, sizeof(peer)) == sizeof(peer));
	check(read(child ? to_parent[0] : to_child[0], &peer, sizeof(peer)) == sizeof(peer));
	check(peer >> 15 != one->qp->qp_num >> 15);
	how = (struct sending){ LENGTH, KEY, peer, one->ah, IBV_WR_SEND, 0 };
	for (int number = 0; number < 8; number++) {
		if (child) {
			memset(one->room, number, LENGTH);
			check(post(one, number, how) == 0);
			completes(one->sent, one, number, IBV_WC_SUCCESS);
		}
		check(completes(one->received, one, number, IBV_WC_SUCCESS).src_qp == peer);
		check(one->room[IN + GRH] == number && one->room[IN + GRH + LENGTH - 1] == number);
		if (!child) {
			memset(one->room, number, LENGTH);
			check(post(one, number, how) == 0);
			completes(one->sent, one, number, IBV_WC_SUCCESS);
		}
	}
	destroy(one);
	if (!child)
		exit(0);
	check(waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **words)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = { { "masks", masks },     { "messages", messages }, { "builder", builder }, { "keys", keys },
		      { "lost", lost },	      { "lengths", lengths },	{ "shared", shared },	{ "events", events },
		      { "flush", flush },     { "wrong", wrong },	{ "processes", processes } };

	alarm(4 * SOON);
	for (unsigned int at = 0; at < sizeof(tests) / sizeof(*tests); at++)
		if (count == 2 && !strcmp(words[1], tests[at].name)) {
			tests[at].run();
			return 0;
		}
	check(!"a test is named");
}
