// Ranks of MPI that exchange data and check all of it: messages to a neighbour, collectives, and one-sided operations.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGS = 100000, ADDS = 200 };

static int rank, ranks, next, last;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%d: line %d: %s\n", rank, __LINE__, #what); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

static void messages(void) {
    for (size_t size = 1; size <= 4 << 20; size = size * 5 + 3) {
        unsigned char *sent = malloc(size), *received = calloc(size, 1);
        CHECK(sent != NULL && received != NULL);
        for (size_t at = 0; at < size; at++) sent[at] = (unsigned char)(at * 7 + (at >> 8) + rank);
        MPI_Sendrecv(sent, (int)size, MPI_BYTE, next, 1, received, (int)size, MPI_BYTE, last, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (size_t at = 0; at < size; at++) CHECK(received[at] == (unsigned char)(at * 7 + (at >> 8) + last));
        free(sent);
        free(received);
    }
}

static void collectives(long *sent, long *received) {
    for (int at = 0; at < LONGS; at++) sent[at] = at + rank;
    MPI_Allreduce(sent, received, LONGS, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int at = 0; at < LONGS; at++) CHECK(received[at] == (long)at * ranks + (long)ranks * (ranks - 1) / 2);
    for (int to = 0; to < ranks; to++) sent[to] = rank * 100 + to;
    MPI_Alltoall(sent, 1, MPI_LONG, received, 1, MPI_LONG, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++) CHECK(received[from] == from * 100 + rank);
}

static void one_sided(long *sent, long *received) {
    long *memory, one = 1, former;
    MPI_Win window;
    MPI_Win_allocate((LONGS + 8) * sizeof *memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    memset(memory, 0, (LONGS + 8) * sizeof *memory);
    MPI_Win_fence(0, window);
    for (int at = 0; at < LONGS; at++) sent[at] = at * 3 + rank;
    MPI_Put(sent, LONGS, MPI_LONG, next, 8, LONGS, MPI_LONG, window);
    MPI_Win_fence(0, window);
    for (int at = 0; at < LONGS; at++) CHECK(memory[8 + at] == at * 3 + last);
    MPI_Get(received, LONGS, MPI_LONG, last, 8, LONGS, MPI_LONG, window);
    MPI_Win_fence(0, window);
    for (int at = 0; at < LONGS; at++) CHECK(received[at] == at * 3 + (last + ranks - 1) % ranks);
    MPI_Win_lock_all(0, window);
    for (int count = 0; count < ADDS; count++) {
        MPI_Fetch_and_op(&one, &former, MPI_LONG, 0, 1, MPI_SUM, window);
        MPI_Win_flush(0, window);
    }
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(rank != 0 || memory[1] == (long)ADDS * ranks);
    MPI_Win_free(&window);
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    next = (rank + 1) % ranks;
    last = (rank + ranks - 1) % ranks;
    long *sent = malloc(LONGS * sizeof *sent), *received = malloc(LONGS * sizeof *received);
    CHECK(sent != NULL && received != NULL);
    messages();
    collectives(sent, received);
    one_sided(sent, received);
    free(sent);
    free(received);
    MPI_Finalize();
    if (rank == 0) printf("%d ranks: all data is right\n", ranks);
    return 0;
}
