/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_CONTROL_BODIES_H
#define WALBUS_TESTS_UNIT_CONTROL_BODIES_H

/* The control bodies behind one face, so that a check runs over all of them, and bodies that are made
 * by hand from their pairs. */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "codec/control.h"
#include "codec/position.h"

#define P1 "50 00000001 00000000016b3748 00000002"
#define P2 "50 00000001 00000000016b3749 00000000"

static const struct position place1 = {1, 0x16B3748, 2}, place2 = {1, 0x16B3749, 0};

union body {
    struct control_hello hello;
    struct control_welcome welcome;
    struct control_subscribe subscribe;
    struct control_subscribed subscribed;
    struct control_ack ack;
    struct control_request request;
    struct control_reply reply;
    struct control_error error;
};

/** Decodes the body of a control frame as its type says; `why` is "" on success. */
int body_decode(uint8_t type, struct bytes body, union body *ret, char why[CONTROL_WHY_SIZE]);
void body_deinit(uint8_t type, union body *b);

#define PAIRS_MAX 16

struct pair {
    const char *key, *value; /* key as text, value in hex */
};

void body_put_pair(struct buf *out, const struct pair *pair);

/** Decodes the map of these pairs; the result and `why`. */
int body_decode_pairs(uint8_t type, const struct pair *pairs, size_t n, char why[CONTROL_WHY_SIZE]);

#endif
