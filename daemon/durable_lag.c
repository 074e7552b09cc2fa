/* SPDX-License-Identifier: PostgreSQL */
/*
 * How far a cursor is behind. The journal counts all messages of an era, so a lag is the count at its end less the
 * count at the cursor. The latter is looked up in the files, by a worker, and holds until
 * the cursor moves; so a list of names that stand costs nothing however often it is asked for.
 */
#include <stdlib.h>

#include "durable_registry.h"
#include "journal/reader.h"

struct durable_lags {
    uv_work_t work;
    struct durables *ds;
    struct journal *journal;
    size_t n;
    struct {
        struct journal_measure measure;
        bool holds; /* what is measured does not change any more */
        size_t name;
        char names[CATALOG_NAME_MAX];
    } at[];
};

static bool is_at_end(const struct durables *ds, struct position p)
{
    return position_compare(p, journal_end(ds->journal)->last) >= 0;
}

static bool is_known(const struct durables *ds, const struct durable *d)
{
    struct position p = durable_stands(ds, d);

    /* that nothing was behind it need not be so any more */
    return is_at_end(ds, p) ||
           (d->measured.known && d->measured.received_time && position_compare(d->measured.at, p) == 0);
}

static void on_work(uv_work_t *work)
{
    struct durable_lags *l = work->data;

    for (size_t i = 0; i < l->n; i++)
        journal_measure(l->journal, &l->at[i].measure);
}

static void on_measured(uv_work_t *work, int status)
{
    struct durable_lags *l = work->data;
    struct durables *ds = l->ds;

    (void)status;
    (void)journal_unref(l->journal);
    ds->lags = NULL;
    if (ds->closed) {
        free(l);
        durables_free_if_idle(ds);
        return;
    }
    for (size_t i = 0; i < l->n; i++) {
        const struct journal_measure *m = &l->at[i].measure;
        struct durable *d = durables_find(ds, (struct bytes){(const uint8_t *)l->at[i].names, l->at[i].name});

        if (d && !m->error)
            d->measured = (struct durable_measured){
                .known = l->at[i].holds,
                .at = m->at,
                .messages = m->messages,
                .bytes = m->bytes,
                .received_time = m->received_time,
            };
    }
    free(l);
    ds->ops->measured(ds->owner);
}

bool durables_measure(struct durables *ds)
{
    size_t n = 0;

    if (ds->lags)
        return true;
    for (size_t i = 0; i < ds->n; i++)
        n += !is_known(ds, ds->all[i]);
    if (n == 0)
        return false;
    struct durable_lags *l = calloc(1, sizeof *l + n * sizeof l->at[0]);
    if (!l)
        return false; /* then by what was known before */
    l->work.data = l;
    l->ds = ds;
    l->journal = journal_ref(ds->journal);
    for (size_t i = 0; i < ds->n; i++) {
        const struct durable *d = ds->all[i];

        if (is_known(ds, d))
            continue;
        l->at[l->n].measure.at = durable_stands(ds, d);
        l->at[l->n].holds = position_compare(l->at[l->n].measure.at, journal_written(ds->journal)) <= 0;
        memcpy(l->at[l->n].names, d->name.data, d->name.size);
        l->at[l->n++].name = d->name.size;
    }
    if (uv_queue_work(ds->loop, &l->work, on_work, on_measured) < 0) {
        (void)journal_unref(l->journal);
        free(l);
        return false;
    }
    ds->lags = l;
    return true;
}

static uint64_t behind(uint64_t all, uint64_t before, uint64_t gap)
{
    uint64_t n = all > before ? all - before : 0;

    return gap == UINT64_MAX ? n : n + gap;
}

void durable_lag(const struct durables *ds, const struct durable *d, int64_t now, struct durable_lag *ret)
{
    const struct journal_end *end = journal_end(ds->journal);
    const struct durable_measured *m = &d->measured;
    uint64_t gap_messages = d->gap.is ? d->gap.messages : 0, gap_bytes = d->gap.is ? d->gap.bytes : 0;

    if (is_at_end(ds, durable_stands(ds, d))) {
        *ret = (struct durable_lag){behind(0, 0, gap_messages), behind(0, 0, gap_bytes), 0};
        return;
    }
    *ret = (struct durable_lag){
        .messages = behind(end->messages, m->messages, gap_messages),
        .bytes = behind(end->bytes, m->bytes, gap_bytes),
        .seconds = m->received_time && now > m->received_time ? (uint64_t)(now - m->received_time) / 1000000 : 0,
    };
}
