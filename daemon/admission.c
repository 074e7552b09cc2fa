/* SPDX-License-Identifier: PostgreSQL */
#include "admission.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "settings/setting_place.h"
#include "settings/setting_value.h"
#include "deliver.h"
#include "intake.h"

/* ---- what the checks tell ---- */

static void on_pass(void *owner, struct batch *batch)
{
    struct router *r = owner;

    if (intake_batch(r, batch))
        deliver_batch(r, batch);
    else
        (void)batch_unref(batch);
}

static void on_room(void *owner)
{
    struct router *r = owner;

    if (r->checks)
        intake_hold(r);
}

static const char *mend_of(int error)
{
    switch (error) {
    case -EDQUOT:
        return "look at it with walbus quarantine list, then release or drop what is in it, or raise quarantine-size, or "
               "change the policy; the router goes on by itself, and nothing is lost meanwhile";
    case -EEXIST:
        return "another file stands where the quarantine was: move it away; the router goes on by itself, and nothing "
               "is lost meanwhile";
    case -ENOSPC:
        return "make room in the state folder; the router goes on by itself, and nothing is lost meanwhile";
    default:
        return "look after the state folder's disk; the router goes on by itself once it can be written, and nothing is "
               "lost meanwhile";
    }
}

static void on_stuck(void *owner, int error)
{
    struct router *r = owner;

    if (!error) {
        log_line(r->log, LOG_INFO, "quarantine.goes-on", "The quarantine takes messages again.");
    } else if (error == -EDQUOT) {
        struct quarantine_count count = quarantine_count(r->quarantine);

        log_line(r->log, LOG_ERROR, "quarantine.full",
                 "The quarantine is full: nothing is read from the server until there is room.",
                 LOG_U64("entries", count.entries), LOG_U64("bytes", count.bytes), LOG_U64("limit", count.limit),
                 LOG_STR("mend", mend_of(error)));
    } else {
        log_line(r->log, LOG_ERROR, "quarantine.failed",
                 "The quarantine cannot be written: nothing is read from the server until it can.",
                 LOG_STR("error", strerror(-error)), LOG_STR("mend", mend_of(error)));
    }
}

static void on_no_memory(void *owner)
{
    struct router *r = owner;

    journal_no_memory(r->journal);
}

static const struct checks_ops checks_ops = {
    .pass = on_pass,
    .room = on_room,
    .stuck = on_stuck,
    .no_memory = on_no_memory,
};

/* ---- the source's ---- */

void admission_batch(struct router *r, struct batch *batch)
{
    if (intake_stamp(r, batch))
        checks_take(r->checks, batch);
    else
        (void)batch_unref(batch);
}

void admission_started(struct router *r)
{
    const struct journal_end *end = journal_end(r->journal);

    checks_set_journal(r->checks, end->system_identifier, end->era);
}

/* ---- rules ---- */

/* The mend is for what is wrong: a sentence of file_read often has its own. */
static void put_no_trust(int e, const char *path, const char *cannot, char why[SETTINGS_WHY_SIZE])
{
    (void)snprintf(why, SETTINGS_WHY_SIZE, "policy needs the trust file: %.300s", cannot);
    size_t size = strlen(why);

    if (e == -ENOENT)
        (void)snprintf(why + size, SETTINGS_WHY_SIZE - size, " Make it with walbus trust, or name it by trust-file");
    else if (e == -EACCES)
        (void)snprintf(why + size, SETTINGS_WHY_SIZE - size,
                       " The router's user must be able to read it: it holds public keys only, so chmod 644 %.100s",
                       path);
    else if (size && why[size - 1] == '.')
        why[size - 1] = '\0'; /* no full stop, as every why */
}

/* The trust file, which must be there when anything is asked of a signature. */
static int read_trust(const char *path, struct trust **ret, uint8_t hash[CHECK_RULES_HASH_SIZE],
                      char why[SETTINGS_WHY_SIZE])
{
    struct file_content text;
    struct trust_fault fault;
    char cannot[FILE_WHY_SIZE];

    int e = file_read(path, TRUST_TEXT_MAX, FILE_TRUSTED, &text, cannot);
    if (e == 0) {
        e = trust_parse(file_bytes(&text), ret, &fault);
        (void)crypto_generichash(hash, CHECK_RULES_HASH_SIZE, text.data, text.size, NULL, 0);
        file_content_deinit(&text);
    } else if (e != -ENOMEM) {
        put_no_trust(e, path, cannot, why);
        return -EINVAL;
    }
    if (e == -EINVAL)
        (void)snprintf(why, SETTINGS_WHY_SIZE, "policy needs the trust file %.100s: %.300s", path, fault.why);
    return e;
}

static void policy_wrong(const struct settings *settings, size_t at, const char *wrong, char why[SETTINGS_WHY_SIZE])
{
    const char *text = settings->policy.values[at];
    struct buf shown = BUF_INIT;

    (void)snprintf(why, SETTINGS_WHY_SIZE, "policy = %s: %s", setting_value_shown(&shown, text, strlen(text)), wrong);
    buf_deinit(&shown);
    setting_place_blame(settings, settings_find("policy"), at, why);
}

int admission_prepare(const struct settings *settings, struct check_rules **ret, char why[SETTINGS_WHY_SIZE])
{
    struct policies policies;
    struct trust *trust = NULL;
    uint8_t hash[CHECK_RULES_HASH_SIZE] = {0};
    char wrong[POLICY_WHY_SIZE];

    size_t at = 0;
    int e = policies_init(&policies, settings->policy.values, settings->policy.n, &at, wrong);
    if (e == -EINVAL)
        policy_wrong(settings, at, wrong, why);
    if (e < 0)
        return e;
    if (!policies.idle)
        e = read_trust(settings->trust_file, &trust, hash, why);
    if (e == -EINVAL)
        setting_place_blame(settings, settings_find("trust-file"), 0, why);
    if (e < 0) {
        policies_deinit(&policies);
        return e;
    }
    *ret = check_rules_new(&policies, trust, settings->audience);
    if (!*ret)
        return -ENOMEM;
    memcpy((*ret)->trust_hash, hash, sizeof hash);
    return 0;
}

bool admission_is_other_trust(const struct router *r, const struct check_rules *rules)
{
    const struct check_rules *now = r->checks ? checks_rules(r->checks) : r->rules;

    return now && now->trust && rules->trust && memcmp(now->trust_hash, rules->trust_hash, CHECK_RULES_HASH_SIZE) != 0;
}

void admission_set(struct router *r, struct check_rules *rules)
{
    const struct check_rules *before = r->checks ? checks_rules(r->checks) : r->rules;

    if (before && !before->policies.idle && rules->policies.idle)
        log_line(r->log, LOG_WARNING, "policy.none", "No prefix asks for signatures any more: everything is delivered as it is.");
    if (rules->trust && !trust_count(rules->trust))
        log_line(r->log, LOG_WARNING, "policy.no-keys", "The trust file has no keys, so no signature is valid.",
                 LOG_STR("path", r->settings->trust_file));
    if (r->checks) {
        quarantine_set_limit(r->quarantine, r->settings->quarantine_size);
        checks_set_rules(r->checks, rules);
    } else {
        (void)check_rules_unref(r->rules);
        r->rules = rules;
    }
}

/* ---- life ---- */

static void log_found(const struct router *r, const char *path, const struct quarantine_found *found)
{
    if (found->damaged)
        log_line(r->log, LOG_ERROR, "quarantine.damaged",
                 "The quarantine is damaged: messages that stood there are lost; unless ten are kept already the file is, beside the new one, as .damaged.",
                 LOG_STR("path", path), LOG_U64("offset", found->damaged_at), LOG_U64("bytes", found->damaged));
    if (found->torn)
        log_line(r->log, LOG_WARNING, "quarantine.torn",
                 "The quarantine's end is no whole record; it is left out. After an unclean stop that is what was not finished.",
                 LOG_STR("path", path), LOG_U64("bytes", found->torn));
}

static int open_quarantine(struct router *r)
{
    char why[QUARANTINE_WHY_SIZE];
    struct quarantine_found found;
    struct buf path = BUF_INIT;

    buf_printf(&path, "%s/quarantine", r->state.folder);
    int e = quarantine_open(buf_str(&path), r->settings->quarantine_size, &r->quarantine, &found, why);
    if (e == 0)
        log_found(r, buf_str(&path), &found);
    else
        log_line(r->log, LOG_ERROR, "quarantine", e == -ENOMEM ? "there is no memory for the quarantine" : why);
    buf_deinit(&path);
    return e == 0                                      ? 0
           : e == -EBADMSG || e == -EPROTONOSUPPORT ? ROUTER_EXIT_DECIDE
                                                       : ROUTER_EXIT_FAILURE;
}

int admission_open(struct router *r)
{
    int status = open_quarantine(r);

    if (status != 0)
        return status;
    r->checks = checks_new(r->loop, r->quarantine, r->rules, verify_content, &checks_ops, r, r->log);
    r->rules = NULL;
    if (!r->checks)
        return ROUTER_EXIT_FAILURE;
    admission_started(r);
    return 0;
}

void admission_tick(struct router *r)
{
    checks_tick(r->checks);
}

void admission_finish(struct router *r)
{
    char position[POSITION_TEXT_SIZE];
    struct position first;
    uint64_t left = r->checks ? checks_finish(r->checks, &first) : 0;

    if (left && r->given_up_at) /* else the server sends it again */
        log_line(r->log, LOG_WARNING, "quarantine.lost",
                 "What had been read before the source gave up, and still waited for the quarantine, goes with this process: "
                 "it comes again only if the slot can still be read.",
                 LOG_U64("messages", left), LOG_STR("first", position_format(first, position)));
}

void admission_close(struct router *r)
{
    if (r->checks)
        checks_close(r->checks);
}

void admission_deinit(struct router *r)
{
    r->rules = check_rules_unref(r->rules);
    r->checks = checks_free(r->checks);
    r->quarantine = quarantine_close(r->quarantine);
}

const char *admission_stuck(const struct router *r)
{
    int error = r->checks ? checks_stuck(r->checks) : 0;

    return error == -EDQUOT ? "the quarantine is full: release or drop what is in it, raise quarantine-size, or change the policy"
           : error          ? "the quarantine cannot be written"
                            : NULL;
}
