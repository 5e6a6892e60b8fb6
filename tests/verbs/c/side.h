/* A queue pair on a device of RoCE with everything of its own, for programs that have both ends. */
#ifndef SIDE_H
#define SIDE_H

#include <stdint.h>
#include <unistd.h>

#include "check.h"

#define ROOM 16384
#define LENGTH 64
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* What a program must name for each state of a connected queue pair. */
#define INIT_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_MASK                                                                                                      \
	(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |   \
	 IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK                                                                                                      \
	(IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |                        \
	 IBV_QP_MAX_QP_RD_ATOMIC)

/* What is sent leaves the first half of its room, and what is received comes into the second. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *domain;
	struct ibv_comp_channel *channel; /* of `received` */
	struct ibv_cq *sent, *received;
	struct ibv_srq *shared; /* if it shares its receives */
	struct ibv_mr *region;
	struct ibv_qp *qp;
	struct ibv_qp_ex *extended;
	struct ibv_ah *ah; /* of datagrams: to this host */
	uint8_t room[ROOM] __attribute__((aligned(64)));
};

static inline struct ibv_context *opened(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	check(list && list[0]);
	context = ibv_open_device(list[0]);
	check(context != NULL);
	ibv_free_device_list(list);
	return context;
}

static inline struct side *side_of(struct ibv_context *context, enum ibv_qp_type type, int is_shared)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 2 } };
	struct ibv_qp_init_attr_ex wanted = { .qp_type = type, .cap = { 8, 8, 2, 2, LENGTH },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM };
	struct side *made = aligned_alloc(64, (sizeof(*made) + 63) / 64 * 64);

	memset(made, 0, sizeof(*made));
	made->context = context;
	check((wanted.pd = made->domain = ibv_alloc_pd(context)) != NULL);
	check((made->channel = ibv_create_comp_channel(context)) != NULL);
	check((wanted.send_cq = made->sent = ibv_create_cq(context, 64, NULL, NULL, 0)) != NULL);
	check((wanted.recv_cq = made->received = ibv_create_cq(context, 64, NULL, made->channel, 0)) != NULL);
	check((made->region = ibv_reg_mr(made->domain, made->room, ROOM, ACCESS)) != NULL);
	if (is_shared)
		check((wanted.srq = made->shared = ibv_create_srq(made->domain, &shared)) != NULL);
	check((made->qp = ibv_create_qp_ex(context, &wanted)) != NULL && made->qp->qp_type == type);
	check((made->extended = ibv_qp_to_qp_ex(made->qp)) != NULL);
	check(made->qp->qp_num > 1 && made->qp->qp_num < 1 << 24);
	return made;
}

static inline void destroy(struct side *made)
{
	check(ibv_destroy_qp(made->qp) == 0);
	check(!made->shared || ibv_destroy_srq(made->shared) == 0);
	check(!made->ah || ibv_destroy_ah(made->ah) == 0);
	check(ibv_dereg_mr(made->region) == 0);
	check(ibv_destroy_cq(made->sent) == 0 && ibv_destroy_cq(made->received) == 0);
	check(ibv_destroy_comp_channel(made->channel) == 0);
	check(ibv_dealloc_pd(made->domain) == 0);
	free(made);
}

static inline int moved(struct side *of, enum ibv_qp_state state)
{
	struct ibv_qp_attr wanted = { .qp_state = state };

	return ibv_modify_qp(of->qp, &wanted, IBV_QP_STATE);
}

static inline struct ibv_qp_attr attributes(struct side *of)
{
	struct ibv_qp_init_attr made;
	struct ibv_qp_attr found;

	memset(&found, 0xff, sizeof(found));
	check(ibv_query_qp(of->qp, &found, IBV_QP_STATE, &made) == 0);
	return found;
}

static inline struct ibv_wc completes(struct ibv_cq *queue, struct side *of, uint64_t number,
				      enum ibv_wc_status status)
{
	struct ibv_wc found = next_of(queue);

	if (found.status != status)
		fprintf(stderr, "%s and not %s\n", ibv_wc_status_str(found.status), ibv_wc_status_str(status));
	check(found.wr_id == number && found.status == status && found.qp_num == of->qp->qp_num);
	return found;
}

/* Nothing of a queue completes for so many milliseconds. */
static inline void stays_silent(struct ibv_cq *queue, int milliseconds)
{
	struct ibv_wc found;

	for (int round = 0; round < milliseconds; round++) {
		check(ibv_poll_cq(queue, 1, &found) == 0);
		usleep(1000);
	}
}

#endif
