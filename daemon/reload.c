/* SPDX-License-Identifier: PostgreSQL */
#include "reload.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "access.h"
#include "admission.h"
#include "codec/cbor.h"
#include "permit.h"
#include "quota.h"
#include "requests.h"
#include "settings/setting_place.h"
#include "settings/settings_change.h"
#include "settings/settings_file.h"

/* What is made of settings before they count: all of it, or nothing. */
struct prepared {
    struct access *access;
    struct check_rules *rules;
};

static int prepare(const struct settings *s, struct prepared *ret, char why[SETTINGS_WHY_SIZE])
{
    *ret = (struct prepared){0};
    size_t wrong = 0;
    int e = access_new(&s->allow, requests_names, &ret->access, &wrong, why);

    if (e == -EINVAL)
        setting_place_blame(s, settings_find("allow"), wrong, why);
    return e < 0 ? e : admission_prepare(s, &ret->rules, why);
}

static void drop(struct prepared *p)
{
    p->access = access_free(p->access);
    p->rules = check_rules_unref(p->rules);
}

/* Puts it in its place; what was there before is dropped. */
static void commit(struct router *r, struct prepared *p)
{
    (void)access_free(r->access);
    r->access = p->access;
    p->access = NULL;
    admission_set(r, p->rules);
    p->rules = NULL;
    quota_limit_accounts(r);
}

int reload_begin(struct router *r, char why[SETTINGS_WHY_SIZE])
{
    struct prepared p;
    int e = prepare(r->settings, &p, why);

    if (e < 0) {
        drop(&p);
        return e;
    }
    commit(r, &p);
    return 0;
}

void reload_end(struct router *r)
{
    r->access = access_free(r->access);
}

/* ---- again ---- */

/* As at the start, from the same places; only the file can be another. */
static int read_again(const struct router *r, struct settings *ret, bool *ret_there, char why[SETTINGS_WHY_SIZE])
{
    int e = settings_copy(r->origin.without_file, ret);

    if (e < 0)
        return e;
    e = r->origin.file ? settings_from_file(ret, r->origin.file, why) : -ENOENT;
    *ret_there = e == 0;
    if (e == -ENOENT && r->origin.file_was_there) { /* taken for empty it would take rights away */
        (void)snprintf(why, SETTINGS_WHY_SIZE, "%.400s: the file is not there any more", r->origin.file);
        e = -EINVAL;
    }
    if (e == -ENOENT)
        e = 0;
    if (e < 0)
        settings_deinit(ret);
    return e;
}

static void note(struct buf *texts, struct buf *words, size_t *n, const struct setting_row *row)
{
    buf_printf(words, "%s%s", *n ? " " : "", row->name);
    cbor_put_str(texts, row->name);
    (*n)++;
}

/* `other_trust`: what stands in the trust file has changed, whether or not its name has. */
static void take_over(struct router *r, struct settings *again, bool other_trust, const char *by,
                      struct reload_answer *a)
{
    const struct setting_row *trust_file = settings_find("trust-file");
    struct buf changed = BUF_INIT, restart = BUF_INIT;

    for (size_t i = 0; i < settings_n_rows; i++) {
        const struct setting_row *row = &settings_rows[i];

        if (settings_row_equal(r->settings, again, row) && !(other_trust && row == trust_file))
            continue;
        if (!row->reloadable) {
            note(&a->restart, &restart, &a->n_restart, row);
            continue;
        }
        settings_row_swap(r->settings, again, row);
        note(&a->changed, &changed, &a->n_changed, row);
    }
    r->log->level = (enum log_level)r->settings->log_level;
    log_line(r->log, LOG_INFO, "router.reload", "The settings were read again.", LOG_STR("by", by),
             LOG_STR("changed", buf_str(&changed)));
    if (a->n_restart)
        log_line(r->log, LOG_WARNING, "router.reload-restart",
                 "Some settings have changed that take effect at a restart alone.",
                 LOG_STR("settings", buf_str(&restart)));
    buf_deinit(&changed);
    buf_deinit(&restart);
}

int reload_settings(struct router *r, const char *by, struct reload_answer *ret, char why[SETTINGS_WHY_SIZE])
{
    struct reload_answer answer = {.changed = BUF_INIT, .restart = BUF_INIT};
    struct settings again;
    struct prepared p;
    bool there;
    int e = read_again(r, &again, &there, why);

    if (e == 0) {
        e = prepare(&again, &p, why);
        if (e == 0) {
            take_over(r, &again, admission_is_other_trust(r, p.rules), by, &answer);
            commit(r, &p);
        }
        drop(&p);
        settings_deinit(&again);
    }
    if (e < 0) {
        log_line(r->log, LOG_ERROR, "router.reload-failed", "The settings cannot be read again; all stay as they are.",
                 LOG_STR("by", by), LOG_STR("error", e == -EINVAL ? why : strerror(-e)));
        return e;
    }
    r->origin.file_was_there = there;
    permit_check_all(r); /* always: a user may have got other names behind the same rules */
    *ret = answer;
    return 0;
}

void reload_answer_deinit(struct reload_answer *a)
{
    buf_deinit(&a->changed);
    buf_deinit(&a->restart);
}
