/* SPDX-License-Identifier: PostgreSQL */
#include "checks_work.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Kept for the next message of the part; what a large one has needed is given back. */
#define SCRATCH_KEEP (1u << 20)
/* What the loop has written stands in another core's cache. So much of the next message is fetched while this one's
 * signature is verified, which reads next to nothing. */
#define FETCH_AHEAD 8192u
#define CACHE_LINE  64u

static int add_note(struct check_notes *notes, const struct check_note *note)
{
    if (notes->n == notes->cap) {
        size_t cap = notes->cap ? 2 * notes->cap : 8;
        struct check_note *grown = realloc(notes->notes, cap * sizeof *grown);

        if (!grown)
            return -ENOMEM;
        notes->notes = grown;
        notes->cap = cap;
    }
    notes->notes[notes->n++] = *note;
    return 0;
}

static int check_message(struct check_job *job, check_verify verify, size_t i, struct buf *scratch)
{
    const struct check_item *item = job->item;
    struct frame_message f = batch_message_of(item->batch, &item->batch->entries[i]);
    const struct verify_scope scope = {
        .prefix = f.prefix,
        .audience = bytes_of_text(item->rules->audience),
        .received_time_us = f.received_time,
    };
    struct verify_result result;

    int r = verify(item->rules->trust, &scope, f.content, scratch, &result);
    if (r < 0)
        return r;
    if (result.status == VERIFY_VALID) {
        job->valid++;
        return 0;
    }
    struct check_note note = {
        .withheld = {.entry = i, .status = result.status},
        .required = item->policies[i] == POLICY_REQUIRE,
        .kid = result.kid,
        .reason = strdup(result.reason),
    };
    if (note.required)
        batch_hash(&f, note.withheld.hash);
    r = add_note(&job->notes, &note);
    if (r < 0)
        free(note.reason);
    return r;
}

static void fetch(const struct batch *batch, const struct batch_entry *entry)
{
    struct bytes pieces[2];

    (void)batch_pieces(batch, entry->offset, MIN(entry->size, (size_t)FETCH_AHEAD), pieces);
    for (size_t at = 0; at < pieces[0].size; at += CACHE_LINE)
        __builtin_prefetch(pieces[0].data + at);
}

void check_part(struct check_job *job, check_verify verify)
{
    struct buf scratch = BUF_INIT;

    for (size_t i = job->from; i < job->to && job->error == 0; i++) {
        if (i + 1 < job->to)
            fetch(job->item->batch, &job->item->batch->entries[i + 1]);
        if (job->item->policies[i] != POLICY_IGNORE)
            job->error = check_message(job, verify, i, &scratch);
        if (scratch.cap > SCRATCH_KEEP)
            buf_deinit(&scratch);
    }
    buf_deinit(&scratch);
}

/* ---- into quarantine ---- */

static struct quarantine_message message_of(const struct check_job *job, const struct check_item *item,
                                            const struct check_note *note)
{
    struct frame_message f = batch_message_of(item->batch, &item->batch->entries[note->withheld.entry]);
    struct quarantine_message m = {
        .system_identifier = job->system_identifier,
        .era = job->era,
        .status = note->withheld.status,
        .position = f.position,
        .lsn = f.lsn,
        .xid = f.xid,
        .flags = f.flags,
        .commit_time = f.commit_time,
        .received_time = f.received_time,
        .prefix = f.prefix,
        .kid = {note->kid.data, MIN(note->kid.size, (size_t)QUARANTINE_KID_MAX)},
        .reason = bytes_of_text(note->reason),
        .content = f.content,
    };

    m.reason.size = MIN(m.reason.size, (size_t)QUARANTINE_REASON_MAX);
    memcpy(m.hash, note->withheld.hash, sizeof m.hash);
    return m;
}

/* What is required of the job's items from `from` on, up to `to`. */
static int put(struct check_job *job, struct quarantine *quarantine, size_t from, size_t to)
{
    size_t n = 0, at = 0, n_new;

    for (size_t i = from; i < to; i++)
        n += job->items[i]->n_required;
    if (!n)
        return 0;
    struct quarantine_message *messages = calloc(n, sizeof *messages);
    if (!messages)
        return -ENOMEM;
    for (size_t i = from; i < to; i++) {
        const struct check_item *item = job->items[i];

        for (size_t k = 0; k < item->notes.n; k++)
            if (item->notes.notes[k].required)
                messages[at++] = message_of(job, item, &item->notes.notes[k]);
    }
    int r = quarantine_put(quarantine, messages, n, &n_new);
    free(messages);
    return r;
}

/* All with one sync; if they do not fit together, as many as do, so that the first may go on. */
static int put_all(struct check_job *job, struct quarantine *quarantine)
{
    int r = put(job, quarantine, 0, job->n);

    job->stored = r == 0 ? job->n : 0;
    if (r != -EDQUOT)
        return r;
    while (job->stored < job->n && (r = put(job, quarantine, job->stored, job->stored + 1)) == 0)
        job->stored++;
    return job->stored ? 0 : r;
}

/* The note of an entry, made if there is none. NULL: no memory. */
static struct check_note *note_of(struct check_item *item, size_t entry)
{
    const struct check_note made = {.withheld = {.entry = entry}};

    for (size_t i = 0; i < item->notes.n; i++)
        if (item->notes.notes[i].withheld.entry == entry)
            return &item->notes.notes[i];
    if (add_note(&item->notes, &made) < 0)
        return NULL;
    item->valid -= item->policies[entry] != POLICY_IGNORE;
    return &item->notes.notes[item->notes.n - 1];
}

/* What has gone into quarantine stays there, although it would be let through now: since it went, it has gone for
 * everybody. Who was told what comes behind it, or was passed over it, would not get it. */
static int stays(struct check_job *job, struct quarantine *quarantine, struct check_item *item, size_t entry)
{
    struct frame_message f = batch_message_of(item->batch, &item->batch->entries[entry]);
    struct quarantine_message m = {
        .system_identifier = job->system_identifier, .era = job->era, .position = f.position};
    uint32_t status;

    if (!quarantine_may_have(quarantine, m.system_identifier, m.era, m.position))
        return 0;
    batch_hash(&f, m.hash);
    int r = quarantine_find(quarantine, &m, &status);
    if (r <= 0)
        return r;
    struct check_note *note = note_of(item, entry);
    if (!note)
        return -ENOMEM;
    note->required = true;
    note->withheld.status = status < VERIFY_STATUS_COUNT ? status : VERIFY_MALFORMED;
    memcpy(note->withheld.hash, m.hash, sizeof m.hash);
    item->sorted = false;
    return 0;
}

static int keep(struct check_job *job, struct quarantine *quarantine, struct check_item *item)
{
    int r = 0;

    for (size_t i = 0; i < item->batch->n_entries && r == 0; i++)
        if (item->batch->entries[i].type == FRAME_MESSAGE)
            r = stays(job, quarantine, item, i);
    return r;
}

void check_store(struct check_job *job, struct quarantine *quarantine)
{
    job->error = put_all(job, quarantine);
    for (size_t i = 0; i < job->stored && job->error == 0; i++)
        if (job->items[i]->came_before)
            job->error = keep(job, quarantine, job->items[i]);
}
