/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_DURABLE_H
#define WALBUS_DAEMON_DURABLE_H

/*
 * The durable subscriptions: names with filters that are kept, a cursor on the journal, and
 * at most one holder, a session that subscribes under the name. All of them are in memory;
 * what changes goes to the catalog, by one worker at a time, paced.
 *
 * The cursor. Everything at or before it is processed, or does not match. It moves
 *
 *   by ACK, and never back;
 *   by floating: as long as nothing that matches came behind it, it is wherever the router is;
 *   by retention, which looks whether something in the oldest segment matches (durable_pass);
 *   by seek and by a subscription that overrides it (durable_move), also back.
 *
 * What a subscriber acknowledged last is `acked`, or where other filters came: from there to the cursor nothing matched.
 * Who keeps his position elsewhere knows no more than that, and asks for it (durable_is_reached) when the journal may have
 * gone on without it.
 *
 * Absent names. One whose cursor is up to date is a member of the route, and floats with what is
 * routed, until the first message that matches. From then on it is pending: it stands, is in no
 * route, and costs nothing. A name that was pending when it was read from the catalog, or let go while
 * something was unacknowledged, may have nothing that matches behind it: retention finds out when it matters.
 *
 * Held names float too, while their holder has acknowledged all that it was sent (durable_float). What a holder
 * was sent is `sent`: the next one is told that everything up to there may come again.
 *
 * After an unclean stop nobody knows what was sent. Then `sent` of every name that was there is the server's WAL position
 * at the first connect (durables_bound), and no durable SUBSCRIBE is answered before.
 *
 * What retention drops of what a name still needs is its gap, from the cursor to `to`, with what is known to lie
 * there; it stays until something behind it is acknowledged. A cursor that lies before the journal's oldest has such a gap too, of
 * which nothing is known.
 *
 * Suspended is a name for whose holder the journal could not be read (durable_suspend): that is a mark, shown and stored,
 * and nothing else. It may be held at any time, which is to try again; once what could not be read was passed the
 * mark goes (durable_read_on), and else with the place: by durable_move and a new era.
 *
 * What is on disk. A cursor there may be older than here: then some messages come again, and
 * are known to (redelivered). But two things have to be there first: a name, and its filters, before its SUBSCRIBE is
 * answered (durable_is_stored); and what was passed over or lost, before its segment goes (durables_stored_behind), or
 * a crash would make a gap of it.
 *
 * What the router has to do
 *
 *   opening    durables_open() behind journal_open(), before the source starts. The catalog is then marked as unclean.
 *   identity   durables_head() is what was stored; when the journal's identity or `proven` changes, durables_set_head().
 *   new era    durables_new_era() with the position behind which it begins, before its first entry (the GAP) is routed.
 *   streaming  durables_bound() with the server's WAL position, each time streaming begins; and with the journal's end when
 *              the source gives up. Only the first counts.
 *   routing    deliver.c: for every member of a route_set that is `absent`, durable_matched(); for a GAP entry,
 *              durables_gap_routed(); then, once for each batch that was routed, durables_routed(). A batch is to be routed entry by entry
 *              while durables_float() says that somebody floats.
 *   each second durables_tick().
 *   retention  behind: walk durables_at(), durable_stands() for where each is. pass: durable_pass(). lost: durable_lost().
 *              No segment goes before durables_stored_behind() its last position; retention_check() again on `stored`.
 *   the end    all sessions closed, then durables_finish(), then durables_close().
 *
 * Loop thread only.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <uv.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/macros.h"
#include "batch.h"
#include "catalog.h"
#include "codec/position.h"
#include "codec/subject.h"
#include "journal/journal.h"
#include "route.h"

/** Shortest time between two commits of the catalog that somebody waits for, in ms: as the journal's syncs. */
#define DURABLE_CONFIRM_MS 10u
/** The same when nobody waits: what a crash makes come again. */
#define DURABLE_COMMIT_MS 200u
/** How long after a commit that failed the next is tried, in ms. */
#define DURABLE_RETRY_MS 1000u
/** A held name's time of being seen is stored at least so often, in ms, and four times within expire-after: so much too early it may
 *  expire after a crash. */
#define DURABLE_SEEN_MS 3600000u
/** Filters of all durable names together, in bytes: their texts, and DURABLE_FILTER_COST for each filter and each token of a pattern. */
#define DURABLES_FILTERS_MAX CATALOG_FILTERS_MAX
/** As SESSION_FILTER_COST: the route keeps a node for it. */
#define DURABLE_FILTER_COST 160u

struct session;
struct durables;

/** Filters of a name; counted, immutable. */
struct durable_filters {
    unsigned refs;
    struct filter *filters, *exclusions; /* owned */
    size_t n_filters, n_exclusions;
    size_t cost; /* towards DURABLES_FILTERS_MAX */
};

struct durable_gap {
    bool is;
    struct position to;      /* its end; it begins behind the cursor */
    uint64_t messages, bytes; /* UINT64_MAX: not known */
};

/** The journal could not be read for its last subscriber. Whoever subscribes tries again. */
struct durable_mark {
    int64_t since;      /* µs since 1970; 0: it is not suspended */
    struct position at; /* what lies behind could not be read */
    char why[CATALOG_REASON_MAX + 1];
};

/** What lies before a position, as it was measured (durable_lag.c). */
struct durable_measured {
    bool known;
    struct position at;
    uint64_t messages, bytes; /* of the era, up to it */
    int64_t received_time;    /* of the first message behind it; 0: there was none */
};

struct durable {
    struct bytes name;               /* owned, with a NUL behind it */
    struct durable_filters *filters; /* one reference */
    uint64_t filters_made;           /* which these are, of all that the registry has seen: what is known of others says nothing */
    struct position cursor;          /* but see durable_stands() */
    bool resumes;                    /* it lies inside a transaction of which the subscriber has had a part */
    struct position acked, sent;
    struct durable_gap gap;
    uint64_t seen_ms, made_ms;       /* of the journal's running time */
    bool has_maker;
    uid_t maker;                     /* the user who has made it; of one from before that was kept, nobody */
    struct durable_mark mark;

    struct session *holder;          /* NULL: absent */
    pid_t holder_pid;
    bool floats;                     /* its member is in the route */
    bool matched;                    /* … and something matched: it goes at durables_routed() */
    struct route_member member;

    /* the catalog */
    bool dirty, filters_dirty;       /* to be written */
    bool in_commit, filters_in_commit;
    bool on_disk;                    /* the name is there in some form */
    bool is_there;                   /* … with the filters as they stand here */
    struct position stored, storing; /* the cursor there: everything that is dropped of the journal must lie before it or … */
    struct position stored_gap, storing_gap; /* … before this */
    bool confirm_due;                /* the holder wants to be told when … */
    struct position confirm;         /* … this is stored */
    uint64_t seen_stored_ms;

    struct durable_measured measured;
    struct durable *next;            /* of those that were removed, until that is on disk */
};

struct durables_ops {
    /** The holder of `d` acknowledged `position` and asked for a word: it is on disk. */
    void (*confirmed)(void *owner, struct durable *d, struct position position);
    /** Something is on disk that was not: whoever waits for that looks again. */
    void (*stored)(void *owner);
    /** durables_measure() is done. */
    void (*measured)(void *owner);
};

/** Opens FOLDER/catalog and reads the names; marks it as unclean, which waits for the disk. `expire_ms` 0: never. 0, or a negative
 *  errno with `why` as catalog_open and catalog_read_all. */
int durables_open(const char *folder, uv_loop_t *loop, struct journal *journal, struct route *route, uint64_t expire_ms,
                  const struct durables_ops *ops, void *owner, struct logger *log, struct durables **ret,
                  char why[CATALOG_WHY_SIZE]) MUST_CHECK;

/** Stores everything, and with `clean` that the stop is a clean one; waits for the disk. Names have no holders any more. 0 or a
 *  negative errno. */
int durables_finish(struct durables *ds, bool clean) MUST_CHECK;
/** Frees it when the loop has let go of it. Returns NULL; takes NULL. */
struct durables *durables_close(struct durables *ds);

/** It has a subscriber, or somebody who waits to be one: no reason to expire. */
void durable_seen(struct durables *ds, struct durable *d);
/** After how long without a subscriber a name is removed. */
void durables_set_expiry(struct durables *ds, uint64_t expire_ms);

/** What is, or is about to be, stored. `clean`: whether the stop before was a clean one. False: nothing was ever stored. */
bool durables_head(const struct durables *ds, struct catalog_head *ret);
/** Whether it is on disk as durables_head() says. */
bool durables_head_is_stored(const struct durables *ds);
/** Stores it soon; `clean` counts for nothing here. */
void durables_set_head(struct durables *ds, const struct catalog_head *head);

/** Everything that is to be written, now; waits. 0 or a negative errno: what failed is still to be written. */
int durables_store(struct durables *ds) MUST_CHECK;

/** Nothing of before can be delivered any more, and positions of before compare with nothing: all cursors go to `after`. Stored before
 *  it returns: 0, or a negative errno. */
int durables_new_era(struct durables *ds, const struct catalog_head *head, struct position after) MUST_CHECK;

/** How far the server's WAL reaches at the first connect: nobody was sent anything behind it. Not `known`: the journal's end, since there
 *  is no server now and nothing more will come; what was sent before an unclean stop stays unknown to the next router. */
void durables_bound(struct durables *ds, struct position at, bool known);
/** Whether it is known, or not needed. */
bool durables_is_bound(const struct durables *ds);

/** Once a second: forgotten names go. */
void durables_tick(struct durables *ds);

/* ---- names ---- */

size_t durables_count(const struct durables *ds);
/** By rising names. */
struct durable *durables_at(const struct durables *ds, size_t i);
/** NULL: there is none. */
struct durable *durables_find(const struct durables *ds, struct bytes name);

/** What is wrong with making a name. */
enum durable_fault {
    DURABLE_OK = 0,
    DURABLE_TOO_MANY,   /* CATALOG_NAMES_MAX are there */
    DURABLE_FULL,       /* DURABLES_FILTERS_MAX would be passed */
};
/** One sentence for people. */
const char *durable_fault_text(enum durable_fault fault);

/** A new name, without a holder; the name must not be there. 0, an enum durable_fault, -ENOMEM. */
int durables_add(struct durables *ds, struct bytes name, const struct filter *filters, size_t n_filters,
                 const struct filter *exclusions, size_t n_exclusions, struct position cursor, struct durable **ret) MUST_CHECK;
/** Right behind durables_add(): who has made it. */
void durable_set_maker(struct durable *d, uid_t uid);
/** Removes one without a holder; *d is gone. */
void durables_remove(struct durables *ds, struct durable *d);
/** Other filters from here on, if they are others; the cursor stays. Only while it is held. 0, DURABLE_FULL, -ENOMEM. */
int durable_set_filters(struct durables *ds, struct durable *d, const struct filter *filters, size_t n_filters,
                        const struct filter *exclusions, size_t n_exclusions) MUST_CHECK;
/** Whether who begins at `p` with these filters may go on at the cursor instead: the journal does not have what lies between any
 *  more, and nothing of it matched. */
bool durable_is_reached(const struct durables *ds, const struct durable *d, struct position p, const struct filter *filters,
                        size_t n_filters, const struct filter *exclusions, size_t n_exclusions);
/** Puts the cursor elsewhere, also back: what was before the old one may come again. */
void durable_move(struct durables *ds, struct durable *d, struct position cursor);

/** Whether name and filters are on disk as they stand here. */
bool durable_is_stored(const struct durable *d);
/** What is to be waited for so that all that has changed until now is on disk, and whether it is. */
uint64_t durables_ticket(struct durables *ds);
bool durables_is_done(const struct durables *ds, uint64_t ticket);

/* ---- holding ---- */

/** `s` becomes its holder; the one before is forgotten. */
void durable_hold(struct durables *ds, struct durable *d, struct session *s, pid_t pid);
/** The holder is gone. `settled`: it was up to date with the router, and had acknowledged all that it was sent. */
void durable_release(struct durables *ds, struct durable *d, bool settled);

/** Everything up to `position` was, or may have been, sent to the holder. */
void durable_sent(struct durables *ds, struct durable *d, struct position position);
/** The holder has processed everything up to `position`, and with `confirm` wants to be told when that is on disk. */
void durable_acked(struct durables *ds, struct durable *d, struct position position, bool confirm);
/** Nothing that the holder needs is at or before `position`, and it has acknowledged all that it was sent. */
void durable_float(struct durables *ds, struct durable *d, struct position position);

/* ---- suspended ---- */

/** Reading for the holder has failed behind `at`, for that reason, a sentence of up to CATALOG_REASON_MAX bytes. True: that is new;
 *  then it was logged. */
bool durable_suspend(struct durables *ds, struct durable *d, struct position at, const char *why);
/** The journal was read for the holder up to `at`, or (`all`) to its end. */
void durable_read_on(struct durables *ds, struct durable *d, struct position at, bool all);

/* ---- routing ---- */

/** Whether somebody floats: batches are then to be routed entry by entry. */
bool durables_float(const struct durables *ds);
/** A message matched an absent member of the route. */
void durable_matched(struct durables *ds, struct route_member *m, struct position position);
/** A GAP, which is for everybody, was routed; `position`: its end. */
void durables_gap_routed(struct durables *ds, struct position position);
/** All of the batch was routed. */
void durables_routed(struct durables *ds, const struct batch *batch);

/** The journal has lost its end, and what was routed from there comes again: those who float keep their places, who comes to
 *  float later begins at the journal's end. */
void durables_fell_back(struct durables *ds);

/* ---- retention ---- */

/** Behind which position the journal is needed, if something matches there: the cursor, wherever it floats, or the end of a gap. */
struct position durable_stands(const struct durables *ds, const struct durable *d);
/** Where the cursor is, a gap aside. */
struct position durable_cursor(const struct durables *ds, const struct durable *d);
/** Nothing that matches lies up to `to`, the end of the oldest segment, but `messages` and `bytes` of others behind where it stands. */
void durable_pass(struct durables *ds, struct durable *d, struct position to, uint64_t messages, uint64_t bytes);
/** What lies behind where it stands is dropped up to `to`, the end of the oldest segment: `messages` and `bytes`. */
void durable_lost(struct durables *ds, struct durable *d, struct position to, uint64_t messages, uint64_t bytes);
/** Whether it is on disk that nobody needs what lies up to `position`. If not it soon is, and `stored` is called. */
bool durables_stored_behind(struct durables *ds, struct position position);

/* ---- lag (durable_lag.c) ---- */

struct durable_lag {
    uint64_t messages, bytes; /* of the journal behind the cursor, whatever matches */
    uint64_t seconds;         /* since the first of them was received */
};

/** Looks up, on a worker, what is not known of where cursors stand. False: everything is known; else `measured` is called. */
bool durables_measure(struct durables *ds);
/** By what was measured last. `now`: µs since 1970. */
void durable_lag(const struct durables *ds, const struct durable *d, int64_t now, struct durable_lag *ret);

#endif
