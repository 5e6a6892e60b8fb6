// Writes chunks of a disk by libiscsi, once or until it fails, or reads them back and compares. Says on standard output
// what is done.
#include <inttypes.h>
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, CHUNK = 1 << 17 };

static void die(struct iscsi_context *iscsi, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, iscsi_get_error(iscsi));
    exit(1);
}

// What is in a chunk: no two words of the disk are alike.
static void fill(uint64_t *words, uint32_t chunk)
{
    for (uint32_t word = 0; word < CHUNK / 8; word++)
        words[word] = (((uint64_t)chunk << 32) + word + 1) * 0x9e3779b97f4a7c15;
}

int main(int count, char **words)
{
    static uint64_t wanted[CHUNK / 8];
    if (count != 5) {
        fprintf(stderr, "usage: %s write|rewrite|read URL FIRST-CHUNK CHUNKS\n", words[0]);
        return 2;
    }
    bool repeats = strcmp(words[1], "rewrite") == 0, writes = repeats || strcmp(words[1], "write") == 0;
    struct iscsi_context *iscsi = iscsi_create_context("iqn.2026-01.example:chunks");
    struct iscsi_url *url = iscsi_parse_full_url(iscsi, words[2]);
    if (!url)
        die(iscsi, words[2]);
    iscsi_set_targetname(iscsi, url->target);
    iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
    iscsi_set_noautoreconnect(iscsi, 1);
    if (iscsi_full_connect_sync(iscsi, url->portal, url->lun) != 0)
        die(iscsi, "login");
    uint32_t first = atoi(words[3]), end = first + atoi(words[4]);
    for (uint32_t chunk = first; chunk < end; chunk = repeats && chunk + 1 == end ? first : chunk + 1) {
        uint32_t lba = chunk * (CHUNK / BLOCK);
        fill(wanted, chunk);
        struct scsi_task *task =
            writes ? iscsi_write10_sync(iscsi, url->lun, lba, (unsigned char *)wanted, CHUNK, BLOCK, 0, 0, 0, 0, 0)
                   : iscsi_read10_sync(iscsi, url->lun, lba, CHUNK, BLOCK, 0, 0, 0, 0, 0);
        if (!task || task->status != SCSI_STATUS_GOOD)
            die(iscsi, words[1]);
        if (!writes && (task->datain.size != CHUNK || memcmp(task->datain.data, wanted, CHUNK) != 0)) {
            printf("chunk %" PRIu32 " is not what was written\n", chunk);
            return 1;
        }
        scsi_free_scsi_task(task);
        printf("%s %" PRIu32 "\n", writes ? "write" : "read", chunk);
        fflush(stdout);
    }
    iscsi_logout_sync(iscsi);
    iscsi_destroy_url(url);
    iscsi_destroy_context(iscsi);
    return 0;
}
