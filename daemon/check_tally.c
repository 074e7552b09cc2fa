/* SPDX-License-Identifier: PostgreSQL */
#include "check_tally.h"

#include "base/text.h"

/* Of a prefix in a log line. */
#define PREFIX_SHOWN 200u
/* Of a key's id, which in foreign content is as long as somebody likes; no key has a longer one. */
#define KID_SHOWN COSE_KEY_KID_MAX

void check_tally_add(struct check_tally *t, struct bytes prefix, const struct check_note *note)
{
    t->messages++;
    t->status = (enum verify_status)note->withheld.status;
    buf_clear(&t->prefix);
    buf_clear(&t->reason);
    buf_clear(&t->kid);
    text_put_visible(&t->prefix, (struct bytes){prefix.data, MIN(prefix.size, (size_t)PREFIX_SHOWN)});
    buf_append_str(&t->reason, note->reason ? note->reason : "");
    text_put_hex(&t->kid, (struct bytes){note->kid.data, MIN(note->kid.size, (size_t)KID_SHOWN)});
}

void check_tally_log(struct check_tally *t, struct logger *log, uint64_t now, bool withheld, uint64_t in_quarantine)
{
    if (!t->messages || (t->logged_at && now - t->logged_at < CHECKS_LOG_MS))
        return;
    log_line(log, LOG_WARNING, withheld ? "policy.withheld" : "policy.unverified",
             withheld ? "Messages were put into quarantine; the fields tell of the last one. See walbus quarantine list."
                      : "Messages whose signature is not valid were delivered, as the policy says; the fields tell of the last one.",
             LOG_U64("messages", t->messages),
             LOG_STR("prefix", buf_str(&t->prefix)), LOG_STR("status", verify_status_text(t->status)),
             LOG_STR("kid", buf_str(&t->kid)), LOG_STR("reason", buf_str(&t->reason)),
             LOG_U64("in_quarantine", in_quarantine));
    t->messages = 0;
    t->logged_at = now;
}

void check_tally_deinit(struct check_tally *t)
{
    buf_deinit(&t->prefix);
    buf_deinit(&t->reason);
    buf_deinit(&t->kid);
}
