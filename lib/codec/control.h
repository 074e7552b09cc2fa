/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_CONTROL_H
#define WALBUS_CODEC_CONTROL_H

/*
 * The control frames' bodies: CBOR maps with text keys. This comment and
 * frame.h are their specification.
 * Unknown keys are ignored; a known key of another type, a known key twice, or a
 * missing required key is an error that names it, as is a key that is not text.
 * Positions are byte strings of POSITION_SIZE. Keys below are the keys on the
 * wire; they are written in the order of deterministic CBOR and read in any.
 * Maps, and the strings and arrays that the decoders look into, are of definite
 * length.
 *
 * Encoders append header and body to `out`. Decoders take the body, borrow from
 * it, and on -EBADMSG write one sentence into `why`. Every decoder first checks
 * that the body is one well-formed map with nothing behind it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"
#include "codec/position.h"
#include "codec/subject.h"

#define CONTROL_WHY_SIZE 160
#define IDENTITY_TEXT_SIZE 48

/** HELLO {"min": uint, "max": uint, "layout": uint (highest known), "client": text} */
struct control_hello {
    uint64_t min, max, layout;
    struct bytes client; /* optional: empty */
};

/** WELCOME {"version": uint, "layout": uint, "server": text, "identity": text,
 *           "timeline": uint, "position": bytes, "max_frame": uint, "max_filters": uint} */
struct control_welcome {
    uint64_t version, layout;
    struct bytes server;    /* name and version */
    struct bytes identity;  /* journal identity "SYSTEM/ERA", empty while unknown */
    uint64_t timeline;      /* 0 while unknown */
    struct position position; /* the router's own, zero while unknown */
    uint64_t max_frame, max_filters;
};

enum control_start {
    CONTROL_START_STORED = 0, /* "stored" */
    CONTROL_START_NOW,        /* "now", the default */
    CONTROL_START_OLDEST,     /* "oldest" */
    CONTROL_START_POSITION,   /* "position": with "position" */
    CONTROL_START_TIME,       /* "time": with "time", µs since 1970 */
};

/** SUBSCRIBE {"filters": [[kind uint, text-or-bytes], …], "exclude": [ … ], "name": text,
 *             "start": text, "position": bytes, "time": int, "take_over": bool, "override": bool}
 *  A filter's text travels as a byte string (a text string is accepted). No filters at all is an
 *  error. All but "filters" is optional; "position" and "time" are written, and needed, only for
 *  the start that they belong to. A durable name that exists goes on from its stored position whatever the start,
 *  unless "override" is true; "stored" with a name that does not exist is an error. */
struct control_subscribe {
    struct filter *filters; /* decoded: malloc'ed array of borrowed texts */
    size_t n_filters;
    struct filter *exclusions;
    size_t n_exclusions;
    struct bytes name; /* durable name; empty: ephemeral */
    enum control_start start;
    struct position position;
    int64_t time;
    bool take_over; /* of a name that another connection holds */
    bool override;  /* the start counts although the name exists */
};

/** SUBSCRIBED {"position": bytes, "stored": bool, "redelivered_to": bytes (optional),
 *              "identity": text, "timeline": uint} */
struct control_subscribed {
    struct position position; /* everything behind it that matches will come */
    bool stored;
    struct position redelivered_to; /* zero: none */
    struct bytes identity;
    uint64_t timeline;
};

/** ACK {"position": bytes, "confirm": bool (optional: false)}; ACKED {"position": bytes} */
struct control_ack {
    struct position position;
    bool confirm;
};

/** REQUEST {"id": uint, "what": text, "args": item (optional)} */
struct control_request {
    uint64_t id;
    struct bytes what;
    struct bytes args; /* one CBOR item, or empty */
};

/** REPLY {"id": uint, "result": item} */
struct control_reply {
    uint64_t id;
    struct bytes result; /* one CBOR item */
};

/** ERROR {"code": text, "text": text, "fatal": bool, "id": uint (of the request, optional)} */
struct control_error {
    struct bytes code; /* the words of CONTROL_ERROR_… */
    struct bytes text; /* one sentence */
    bool fatal;        /* the sender closes the connection behind it */
    bool has_id;
    uint64_t id;
};

/** Longest name of a durable subscription, bytes. */
#define CONTROL_NAME_MAX 255
/** Whether it can be one: 1 to CONTROL_NAME_MAX bytes of UTF-8, all of it text_is_graphic(): it stands as a word in
 *  listings. */
bool control_name_is_good(struct bytes name);

#define CONTROL_ERROR_PROTOCOL     "protocol"      /* malformed, unknown or out-of-order frame */
#define CONTROL_ERROR_VERSION      "version"       /* no common version or layout */
#define CONTROL_ERROR_INVALID      "invalid"       /* well-formed but not acceptable: bad filter, bad start */
#define CONTROL_ERROR_UNSUPPORTED  "unsupported"   /* this router cannot do that */
#define CONTROL_ERROR_TOO_SLOW     "too-slow"      /* the subscriber did not keep up */
#define CONTROL_ERROR_TIMEOUT      "timeout"       /* silence before HELLO or SUBSCRIBE */
#define CONTROL_ERROR_LIMIT        "limit"         /* too many connections */
#define CONTROL_ERROR_STOPPING     "stopping"      /* the router is being stopped */
#define CONTROL_ERROR_HELD         "held"          /* another connection holds the durable name */
#define CONTROL_ERROR_TAKEN_OVER   "taken-over"    /* another connection has taken the durable name over */
#define CONTROL_ERROR_UNKNOWN_NAME "unknown-name"  /* there is no durable subscription of this name, no such message in quarantine */
#define CONTROL_ERROR_FORBIDDEN    "forbidden"     /* only the router's user and root may do that */
#define CONTROL_ERROR_REMOVED      "removed"       /* the durable name was removed or moved while this connection held it */
#define CONTROL_ERROR_JOURNAL      "journal"       /* the router cannot read its journal */
#define CONTROL_ERROR_SOURCE       "source"        /* the router may not go on reading */

void control_hello_encode(const struct control_hello *c, struct buf *out);
void control_welcome_encode(const struct control_welcome *c, struct buf *out);
void control_subscribe_encode(const struct control_subscribe *c, struct buf *out);
void control_subscribed_encode(const struct control_subscribed *c, struct buf *out);
void control_ack_encode(const struct control_ack *c, bool acked, struct buf *out);
void control_request_encode(const struct control_request *c, struct buf *out);
void control_reply_encode(const struct control_reply *c, struct buf *out);
void control_error_encode(const struct control_error *c, struct buf *out);

int control_hello_decode(struct bytes body, struct control_hello *ret, char why[CONTROL_WHY_SIZE]) MUST_CHECK;
int control_welcome_decode(struct bytes body, struct control_welcome *ret, char why[CONTROL_WHY_SIZE]) MUST_CHECK;
/** Also -ENOMEM. On 0 free with control_subscribe_deinit. Filters are limited to FILTERS_MAX,
 *  FILTER_TEXT_MAX and FILTERS_TOKENS_MAX here. */
int control_subscribe_decode(struct bytes body, struct control_subscribe *ret, char why[CONTROL_WHY_SIZE]) MUST_CHECK;
void control_subscribe_deinit(struct control_subscribe *c);
int control_subscribed_decode(struct bytes body, struct control_subscribed *ret, char why[CONTROL_WHY_SIZE]) MUST_CHECK;
int control_ack_decode(struct bytes body, struct control_ack *ret, char why[CONTROL_WHY_SIZE]) MUST_CHECK;
int control_request_decode(struct bytes body, struct control_request *ret, char why[CONTROL_WHY_SIZE]) MUST_CHECK;
int control_reply_decode(struct bytes body, struct control_reply *ret, char why[CONTROL_WHY_SIZE]) MUST_CHECK;
int control_error_decode(struct bytes body, struct control_error *ret, char why[CONTROL_WHY_SIZE]) MUST_CHECK;

#endif
