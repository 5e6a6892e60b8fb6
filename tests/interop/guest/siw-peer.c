// A peer that does as it is told, over rdma-core's verbs and the kernel's siw.
//
//   siw-peer listen PORT SIZE             takes connections, any number at once, until it is ended
//   siw-peer connect ADDRESS PORT SIZE    makes one, and says first what it offers
//
// SIZE is the longest message and the length of the memory offered, in octets. The other side commands by Sends of 24 octets
//
//   u32 operation, u32 stag, u64 offset, u32 length, u32 zero        (big-endian)
//
// and gets, when all is done, a Send of 24 octets back: u32 'done', u32 stag, u64 offset, u32 length, u32 zero, of the memory
// offered. Any other Send is sent back as it came. Exit status 0 when either side has parted.
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { DONE = 0, OFFER = 1, WRITE = 2, READ = 3, SEND_INVALIDATE = 4, SEND_SOLICITED = 5, PART = 6 };
enum { RECEIVES = 4, COMMAND = 24 };

struct command {
    uint32_t operation, stag;
    uint64_t offset;
    uint32_t length, zero;
} __attribute__((packed));

struct peer {
    struct rdma_cm_id *id;
    struct ibv_mr *received, *offered, *said;
    uint32_t size;
};

static void die(const char *what)
{
    fprintf(stderr, "siw-peer: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct ibv_mr *memory(struct peer *peer, size_t size)
{
    // Not from the heap, where a connection's memory would stay after it: the guest has little.
    void *octets = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *mr = octets != MAP_FAILED ? ibv_reg_mr(peer->id->pd, octets, size, rights) : NULL;
    if (!mr)
        die("registering memory");
    return mr;
}

static void forget(struct ibv_mr *mr)
{
    void *octets = mr->addr;
    size_t size = mr->length;
    ibv_dereg_mr(mr);
    munmap(octets, size);
}

static void *slot(struct peer *peer, uint64_t number)
{
    return (char *)peer->received->addr + number * peer->size;
}

static void receive_into(struct peer *peer, uint64_t number)
{
    if (rdma_post_recv(peer->id, (void *)(uintptr_t)number, slot(peer, number), peer->size, peer->received))
        die("posting a receive");
}

// Posts one request and waits for it; what it came to.
static enum ibv_wc_status request(struct peer *peer, enum ibv_wr_opcode opcode, int flags, void *octets, uint32_t length,
                                  struct ibv_mr *mr, uint32_t stag, uint64_t offset)
{
    struct ibv_sge entry = {.addr = (uintptr_t)octets, .length = length, .lkey = mr->lkey};
    struct ibv_send_wr work = {
        .sg_list = &entry, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED | flags}, *bad;
    struct ibv_wc completion;
    if (opcode == IBV_WR_SEND_WITH_INV)
        work.invalidate_rkey = stag;
    // Also for an STag to be invalidated: it is here that libsiw looks for it.
    work.wr.rdma.rkey = stag;
    work.wr.rdma.remote_addr = offset;
    if (ibv_post_send(peer->id->qp, &work, &bad))
        die("posting a request");
    if (rdma_get_send_comp(peer->id, &completion) < 0)
        die("waiting for a request");
    return completion.status;
}

static enum ibv_wc_status say_done(struct peer *peer, enum ibv_wr_opcode opcode, int flags, uint32_t invalidated)
{
    struct command *said = peer->said->addr;
    *said = (struct command){.operation = htobe32(DONE),
                             .stag = htobe32(peer->offered->rkey),
                             .offset = htobe64((uintptr_t)peer->offered->addr),
                             .length = htobe32(peer->size)};
    return request(peer, opcode, flags, said, COMMAND, peer->said, invalidated, 0);
}

static enum ibv_wc_status obey(struct peer *peer, const struct command *command)
{
    uint32_t stag = be32toh(command->stag), length = be32toh(command->length);
    uint64_t offset = be64toh(command->offset);
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    if (length > peer->size)
        length = peer->size;
    switch (be32toh(command->operation)) {
    case OFFER:
        break;
    case WRITE:
        status = request(peer, IBV_WR_RDMA_WRITE, 0, peer->offered->addr, length, peer->offered, stag, offset);
        break;
    case READ:
        status = request(peer, IBV_WR_RDMA_READ, 0, peer->offered->addr, length, peer->offered, stag, offset);
        break;
    case SEND_INVALIDATE:
        return say_done(peer, IBV_WR_SEND_WITH_INV, 0, stag);
    case SEND_SOLICITED:
        return say_done(peer, IBV_WR_SEND, IBV_SEND_SOLICITED, 0);
    case PART:
        // As if the other side had closed.
        return IBV_WC_WR_FLUSH_ERR;
    }
    return status == IBV_WC_SUCCESS ? say_done(peer, IBV_WR_SEND, 0, 0) : status;
}

static int serve(struct peer *peer)
{
    for (;;) {
        struct ibv_wc completion;
        if (rdma_get_recv_comp(peer->id, &completion) < 0)
            die("waiting for a message");
        if (completion.status == IBV_WC_WR_FLUSH_ERR)
            return 0;
        enum ibv_wc_status status = completion.status;
        if (status == IBV_WC_SUCCESS) {
            void *message = slot(peer, completion.wr_id);
            if (completion.byte_len == COMMAND)
                status = obey(peer, message);
            else
                status = request(peer, IBV_WR_SEND, 0, message, completion.byte_len, peer->received, 0, 0);
            if (status == IBV_WC_SUCCESS)
                receive_into(peer, completion.wr_id);
        }
        // A connection that the other side closes flushes what is under way.
        if (status == IBV_WC_WR_FLUSH_ERR)
            return 0;
        if (status != IBV_WC_SUCCESS) {
            printf("work failed: %s\n", ibv_wc_status_str(status));
            return 2;
        }
    }
}

static void prepare(struct peer *peer)
{
    peer->received = memory(peer, (size_t)RECEIVES * peer->size);
    peer->offered = memory(peer, peer->size);
    peer->said = memory(peer, COMMAND);
    for (uint64_t number = 0; number < RECEIVES; number++)
        receive_into(peer, number);
}

static void dismiss(struct peer *peer)
{
    rdma_disconnect(peer->id);
    forget(peer->received);
    forget(peer->offered);
    forget(peer->said);
    rdma_destroy_ep(peer->id);
    free(peer);
}

static void *serve_in_thread(void *argument)
{
    struct peer *peer = argument;
    serve(peer);
    dismiss(peer);
    return NULL;
}

int main(int count, char **arguments)
{
    struct ibv_qp_init_attr queues = {
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1}, .qp_type = IBV_QPT_RC};
    struct rdma_conn_param parameters = {.responder_resources = 16, .initiator_depth = 16};
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *found;
    setlinebuf(stdout);
    if (count == 4 && !strcmp(arguments[1], "listen")) {
        struct rdma_cm_id *listener;
        hints.ai_flags = RAI_PASSIVE;
        if (rdma_getaddrinfo(NULL, arguments[2], &hints, &found) || rdma_create_ep(&listener, found, NULL, &queues))
            die("making a listener");
        if (rdma_listen(listener, 64))
            die("listening");
        for (;;) {
            struct peer *peer = calloc(1, sizeof *peer);
            pthread_t thread;
            if (rdma_get_request(listener, &peer->id))
                die("waiting for a connection");
            peer->size = atoi(arguments[3]);
            prepare(peer);
            // One that has gone before it was accepted is no reason to stop.
            if (rdma_accept(peer->id, &parameters))
                dismiss(peer);
            else if (pthread_create(&thread, NULL, serve_in_thread, peer) || pthread_detach(thread))
                die("making a thread");
        }
    }
    if (count == 5 && !strcmp(arguments[1], "connect")) {
        struct peer *peer = calloc(1, sizeof *peer);
        if (rdma_getaddrinfo(arguments[2], arguments[3], &hints, &found) || rdma_create_ep(&peer->id, found, NULL, &queues))
            die("finding the way");
        peer->size = atoi(arguments[4]);
        prepare(peer);
        if (rdma_connect(peer->id, &parameters))
            die("connecting");
        if (say_done(peer, IBV_WR_SEND, 0, 0) != IBV_WC_SUCCESS)
            die("the first message");
        int status = serve(peer);
        dismiss(peer);
        return status;
    }
    fprintf(stderr, "usage: siw-peer listen PORT SIZE | siw-peer connect ADDRESS PORT SIZE\n");
    return 64;
}
