/* SPDX-License-Identifier: PostgreSQL */
#include "continuity.h"

#include <stdio.h>
#include <string.h>

void continuity_deinit(struct continuity *c)
{
    buf_deinit(&c->same_error);
}

enum continuity_verdict continuity_server(struct continuity *c, uint64_t system_identifier)
{
    if (c->system_identifier && system_identifier != c->system_identifier)
        return CONTINUITY_OTHER_SYSTEM;
    c->system_identifier = system_identifier;
    return CONTINUITY_GOES_ON;
}

enum continuity_verdict continuity_database(struct continuity *c, const char *database)
{
    if (*c->database && strcmp(c->database, database) != 0)
        return CONTINUITY_OTHER_DATABASE;
    (void)snprintf(c->database, sizeof c->database, "%s", database);
    return CONTINUITY_GOES_ON;
}

enum continuity_verdict continuity_slot(struct continuity *c, uint64_t confirmed_flush_lsn)
{
    if (c->told && confirmed_flush_lsn > c->told)
        return CONTINUITY_SLOT_MOVED;
    continuity_advance(c, confirmed_flush_lsn);
    return CONTINUITY_GOES_ON;
}

enum continuity_verdict continuity_timeline(const struct continuity *c, uint32_t timeline,
                                            uint64_t wal_lsn)
{
    if (timeline < c->timeline || (timeline == c->timeline && wal_lsn && wal_lsn < c->told))
        return CONTINUITY_SERVER_RESTORED;
    return CONTINUITY_GOES_ON;
}

enum continuity_verdict continuity_history(const struct continuity *c,
                                           const struct timeline_history *history)
{
    if (!c->timeline || c->timeline == history->current)
        return CONTINUITY_GOES_ON;
    for (size_t i = 0; i < history->n; i++)
        if (history->switches[i].timeline == c->timeline)
            return CONTINUITY_GOES_ON;
    return CONTINUITY_SERVER_RESTORED;
}

bool continuity_left(struct continuity *c, const struct timeline_history *history, uint64_t *ret_at)
{
    for (size_t i = 0; i < history->n; i++) {
        const struct timeline_switch *s = &history->switches[i];

        if (s->timeline == c->timeline && s->at < c->told) {
            c->told = s->at; /* the new history is judged by what it shares */
            *ret_at = s->at;
            return true;
        }
    }
    return false;
}

bool continuity_is_new_era(enum continuity_verdict verdict)
{
    return verdict == CONTINUITY_OTHER_SYSTEM || verdict == CONTINUITY_OTHER_DATABASE ||
           verdict == CONTINUITY_SERVER_RESTORED;
}

void continuity_accept(struct continuity *c, enum continuity_verdict verdict)
{
    c->told = 0;
    if (!continuity_is_new_era(verdict))
        return;
    c->system_identifier = 0;
    c->database[0] = 0;
    c->timeline = 0;
}

void continuity_streaming(struct continuity *c, uint32_t timeline)
{
    c->timeline = timeline;
}

void continuity_advance(struct continuity *c, uint64_t lsn)
{
    c->told = MAX(c->told, lsn);
}

/* Errors that say nothing of the slot's content: the network's, of concurrency, of resources such as a
 * full disk, of an object's state, an operator's doing, the system's. */
static bool may_pass(const char *sqlstate)
{
    static const char classes[][3] = {"08", "40", "53", "55", "57", "58"};

    for (size_t i = 0; i < ARRAY_SIZE(classes); i++)
        if (strncmp(sqlstate, classes[i], 2) == 0)
            return true;
    return false;
}

enum continuity_verdict continuity_error(struct continuity *c, const char *error,
                                         const char *sqlstate, bool undecodable, uint64_t now)
{
    if (!undecodable && (!*sqlstate || may_pass(sqlstate)))
        return CONTINUITY_GOES_ON;
    if (c->same_errors && c->same_error_at == c->told &&
        strcmp(buf_str(&c->same_error), error) == 0) {
        c->same_errors++;
    } else {
        c->same_errors = 1;
        c->same_error_since = now;
        c->same_error_at = c->told;
        buf_clear(&c->same_error);
        buf_append_str(&c->same_error, error);
    }
    return c->same_errors >= CONTINUITY_SAME_ERROR_MAX &&
                   now - c->same_error_since >= CONTINUITY_SAME_ERROR_MS * UINT64_C(1000000)
               ? CONTINUITY_SLOT_POISONED
               : CONTINUITY_GOES_ON;
}

#define FIND_OUT                                                                                  \
    "find out what happened to the server; walbusd --accept-gap goes on from where the slot "     \
    "stands, and tells every subscription of the gap"

static const struct continuity_refusal refusals[] = {
    [CONTINUITY_OTHER_SYSTEM] =
        {"other-system",
         "The server is not the one that the journal was read from: its system identifier differs.",
         FIND_OUT},
    [CONTINUITY_OTHER_DATABASE] =
        {"other-database", "The journal was read from another database.",
         "name that database in the dsn, or another state-dir; or walbusd --accept-gap"},
    [CONTINUITY_SLOT_MOVED] =
        {"slot-moved",
         "The slot was moved or made anew, or the state folder is an old one: the slot stands beyond "
         "all that the journal has.", FIND_OUT},
    [CONTINUITY_SERVER_RESTORED] = {"server-restored",
                                    "The server's timeline, or its WAL on it, ends before what the "
                                    "journal has, or differs from it: it was restored to an older state, or is "
                                    "a standby that had not followed.",
                                    FIND_OUT},
    [CONTINUITY_SLOT_POISONED] =
        {"slot-poisoned",
         "The server cannot decode the slot beyond a place: the same error came each time.",
         "the messages behind that place are lost to this slot; make it anew: "
         "walbus teardown, walbus setup; then walbusd --accept-gap"},
};

const struct continuity_refusal *continuity_refusal(enum continuity_verdict verdict)
{
    return &refusals[verdict];
}
