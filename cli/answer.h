/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_ANSWER_H
#define WALBUS_CLI_ANSWER_H

/* What the router answers: asking it once, and finding one's way in the CBOR that it gives. */

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "base/socket_place.h"
#include "cli.h"
#include "codec/cbor.h"
#include "walbus/walbus.h"

#define ANSWER_WHY_SIZE MAX(SOCKET_PLACE_WHY_SIZE, SETTINGS_WHY_SIZE)

/** Where the router's socket is: socket_place_of_client() with the setting, whose place a fault names; also -ENOENT, with
 *  `why`, for what is there and is no socket. */
int answer_place(const struct cli *cli, char **ret, char why[ANSWER_WHY_SIZE]) MUST_CHECK;

/**
 * Asks the router for `what`, with one item or none as arguments, for 10 s at most. CLI_OK and *ret, to be
 * freed; else the exit status, when it has been said why: CLI_UNREACHABLE when no router answers. `refused` is called
 * instead when the router refuses, with its word and its sentence; NULL: that is said too.
 */
int answer_ask(struct cli *cli, const char *command, const char *what, struct bytes args,
               int (*refused)(void *context, const char *code, const char *sentence), void *context,
               struct walbus_reply **ret) MUST_CHECK;

/** The item of a reply. */
struct bytes answer_of(const struct walbus_reply *reply);

/** Walks a container of definite length: true and the next value, of a map with its key. */
struct answer_walk {
    struct cbor_reader r;
    uint64_t left;
    bool is_map;
};

/** False: the item is none of this kind, CBOR_MAP or CBOR_ARRAY. */
bool answer_walk_start(struct answer_walk *w, struct bytes item, enum cbor_kind kind) MUST_CHECK;
/** False at the end, and where something is wrong: then w->left is not 0. */
bool answer_walk_next(struct answer_walk *w, struct bytes *key, struct bytes *value) MUST_CHECK;

/** The value under a key of a map, or {NULL, 0}. */
struct bytes answer_item(struct bytes map, const char *key);
/** The text under a key of a map, or {NULL, 0}. */
struct bytes answer_text(struct bytes map, const char *key);
/** The number under a key of a map. False: there is none, or it is no unsigned integer. */
bool answer_uint(struct bytes map, const char *key, uint64_t *ret) MUST_CHECK;

#endif
