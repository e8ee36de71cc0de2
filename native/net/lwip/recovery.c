/* recovery: from several losses in one window, one frame a round trip. */
#include "net/lwip/recovery.h"

#include <lwip/priv/tcp_priv.h>

#include "net/lwip/connection.h"
#include "net/lwip/hooks.h"

bool recovery_resends_one(struct recovery *recovery, const struct tcp_pcb *pcb) {
    if (!(pcb->flags & TF_INFR) || (pcb->flags & TF_RTO)) return false;
    if (!recovery->active) {
        recovery->active = true;
        recovery->until = pcb->snd_nxt;
        recovery->resent_at = pcb->lastack;
    }
    return true;
}

/* ---- what duplicate acknowledgements say ------------------------------------------------------------------------- */

#define OPTION_END 0
#define OPTION_NOTHING 1
#define OPTION_SACK 5
#define BLOCK_BYTES 8u
#define REORDERED_FRAMES 3u /* that may come before one that is on its way still */

static uint32_t word_at(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* The option's blocks and how many; 0: it is not there, or broken. */
static uint32_t find_blocks(const uint8_t *options, uint32_t length, const uint8_t **blocks) {
    for (uint32_t at = 0; at < length && options[at] != OPTION_END;) {
        if (options[at] == OPTION_NOTHING) {
            at++;
            continue;
        }
        if (at + 1 >= length || options[at + 1] < 2 || at + options[at + 1] > length) return 0;
        if (options[at] == OPTION_SACK) {
            *blocks = options + at + 2;
            return (options[at + 1] - 2) / BLOCK_BYTES;
        }
        at += options[at + 1];
    }
    return 0;
}

struct recovery_report recovery_read(const uint8_t *options, uint32_t length, uint32_t acknowledged) {
    struct recovery_report report = {RECOVERY_NOTHING, acknowledged};
    const uint8_t *blocks = NULL;
    uint32_t count = find_blocks(options, length, &blocks);
    if (count == 0) return report;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t right = word_at(blocks + i * BLOCK_BYTES + 4);
        if (TCP_SEQ_GT(right, report.highest)) report.highest = right;
    }
    report.sign = RECOVERY_MISSING;
    uint32_t left = word_at(blocks), right = word_at(blocks + 4);
    if (TCP_SEQ_LEQ(right, acknowledged)) report.sign = RECOVERY_DUPLICATE;
    if (count > 1 && TCP_SEQ_LEQ(word_at(blocks + BLOCK_BYTES), left) &&
        TCP_SEQ_LEQ(right, word_at(blocks + BLOCK_BYTES + 4)))
        report.sign = RECOVERY_DUPLICATE;
    return report;
}

/* ---- around lwIP ------------------------------------------------------------------------------------------------- */

/* Of the frame that lwIP has in hand, where it is of a connection and may tell of a loss. */
static struct {
    struct lwip_connection *connection;
    uint32_t highest;
} input;

/* lwIP counts duplicates only of segments that leave the window as it was, but Linux widens it with every frame. The next
 * one that acknowledges something tells of the window again. */
static err_t weigh_duplicate(struct tcp_pcb *pcb, struct tcp_hdr *header, const struct lwip_connection *connection,
                             const struct recovery_report *report) {
    uint16_t window = (uint16_t)(pcb->snd_wnd >> pcb->snd_scale);
    if (report->sign == RECOVERY_NOTHING || pcb->rtime < 0) return ERR_OK; /* nothing is under way */
    /* lwIP would count it, and send once more what arrived twice. */
    if (report->sign == RECOVERY_DUPLICATE) return header->wnd == window ? ERR_ABRT : ERR_OK;
    if (window > 0) header->wnd = window;
    /* It lets a segment's worth of data out for each, but each stands for a frame. */
    uint32_t more = connection ? pcb->mss - connection->wire_bytes : 0;
    if (pcb->dupacks >= 3 && pcb->cwnd > more + pcb->mss) pcb->cwnd -= more;
    return ERR_OK;
}

err_t stack_before_input(struct tcp_pcb *pcb, struct tcp_hdr *header, u16_t options_bytes, const struct pbuf *data) {
    if (pcb->state < ESTABLISHED || pcb->state >= TIME_WAIT || (TCPH_FLAGS(header) & (TCP_SYN | TCP_RST)))
        return ERR_OK;
    struct lwip_connection *connection = connection_of(pcb);
    struct recovery_report report = recovery_read((const uint8_t *)(header + 1), options_bytes, header->ackno);
    if (connection && (connection->recovery.active || report.highest != header->ackno)) {
        input.connection = connection;
        input.highest = report.highest;
    }
    if (data->tot_len > 0 || header->ackno != pcb->lastack || (TCPH_FLAGS(header) & TCP_FIN)) return ERR_OK;
    return weigh_duplicate(pcb, header, connection, &report);
}

static void send_again(struct recovery *recovery, struct tcp_pcb *pcb, uint32_t wire_bytes) {
    if (recovery->active && TCP_SEQ_GEQ(pcb->lastack, recovery->until)) recovery->active = false;
    if (!recovery->active) {
        if (TCP_SEQ_LEQ(input.highest, pcb->lastack + REORDERED_FRAMES * wire_bytes)) return;
        tcp_rexmit_fast(pcb);
    } else {
        /* A peer that supports SACK and reports no block beyond the gap has received everything. */
        if ((pcb->flags & TF_SACK) && TCP_SEQ_LEQ(input.highest, pcb->lastack)) return;
        recovery->resent_at = pcb->lastack;
        if (tcp_rexmit(pcb) != ERR_OK) return;
        tcp_set_flags(pcb, TF_INFR);
    }
    tcp_output(pcb);
}

void recovery_go_on(void) {
    struct lwip_connection *connection = input.connection;
    input.connection = NULL;
    struct tcp_pcb *pcb = connection ? connection->pcb : NULL;
    if (!pcb || !pcb->unacked) return;
    struct recovery *recovery = &connection->recovery;
    if (pcb->flags & TF_RTO) { /* lwIP sends all again by itself */
        recovery->active = false;
        return;
    }
    if (recovery->active && pcb->lastack == recovery->resent_at) return;
    send_again(recovery, pcb, connection->wire_bytes);
}
