/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_CATALOG_VALUE_H
#define WALBUS_DAEMON_CATALOG_VALUE_H

/*
 * The catalog's keys and values as bytes (what there is stands in catalog.c): private to it. Pure. All integers are big-endian.
 *
 *   subscription   u8 format | u8 flags (1: resumes, 2: gap, 4: mark, 8: maker) | u64 number of its filters
 *                  | positions cursor, acked, sent, gap_to (16 each) | u64 messages, u64 bytes in the gap | u64 seen, u64 made, ms | u32 size of the filters, u64 their checksum
 *                  | with flag 8 u32 uid that has made it
 *                  | with flag 4 a mark: i64 since, position, u8 length of the reason, the reason
 *                  | u64 checksum of key and value
 *   filters        of each, filters first: u8 list (1: exclusion) | u8 kind | u16 length | text
 *
 * A checksum is XXH3-64, of a value seeded with that of its key.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lmdb.h>

#include "base/buf.h"
#include "base/macros.h"
#include "catalog.h"

#define CATALOG_KEY_HEAD         'h'
#define CATALOG_KEY_SUBSCRIPTION 'n'
#define CATALOG_KEY_FILTERS      'f'

/** Two nodes with their keys (11 bytes) and headers (8 and 2) fill one page of 4096: me_nodemax in mdb.c. */
#define CATALOG_CHUNK_SIZE 2000u
#define CATALOG_CHUNK_KEY  11u

#define CATALOG_SUBSCRIPTION_SIZE (1u + 1u + 8u + 4u * POSITION_SIZE + 4u * 8u + 4u + 8u + 8u)
/** In front of the checksum: since when, where, how long the reason is; and the reason. */
#define CATALOG_MARK_SIZE         (8u + POSITION_SIZE + 1u)
#define CATALOG_MAKER_SIZE        4u
#define CATALOG_SUBSCRIPTION_MOST \
    (CATALOG_SUBSCRIPTION_SIZE + CATALOG_MAKER_SIZE + CATALOG_MARK_SIZE + CATALOG_REASON_MAX)

/** What a subscription's value holds beside its state. */
struct catalog_filters_ref {
    uint64_t id, checksum;
    uint32_t size;
};

/** Puts the checksum into the last eight bytes. */
void catalog_value_seal(MDB_val key, uint8_t *value, size_t size);
/** Whether it has this size and its checksum. */
bool catalog_value_is_sealed(MDB_val key, MDB_val value, size_t size);

/** Returns how large it is, its checksum included, which is not yet there. */
size_t catalog_subscription_encode(const struct catalog_subscription *s, struct catalog_filters_ref ref,
                                   uint8_t out[CATALOG_SUBSCRIPTION_MOST]);
/** Whether it is a subscription's value, as it was written. */
bool catalog_subscription_is_sealed(MDB_val key, MDB_val value);
/** Of one that is. The reason of a mark is borrowed; name and filters are not touched. */
void catalog_subscription_decode(const uint8_t *in, struct catalog_subscription *s, struct catalog_filters_ref *ref);

void catalog_filters_encode(struct buf *out, const struct filter *filters, size_t n, uint8_t list);
/** Reads both lists into `all`, filters first, which has room for 2 * FILTERS_MAX; the texts are borrowed. 0 or -EBADMSG. */
int catalog_filters_decode(struct bytes in, struct filter *all, size_t *ret_filters, size_t *ret_exclusions) MUST_CHECK;

MDB_val catalog_chunk_key(uint64_t id, unsigned i, uint8_t out[CATALOG_CHUNK_KEY]);
MDB_val catalog_name_key(struct bytes name, uint8_t out[1 + CATALOG_NAME_MAX]);
MDB_val catalog_head_key(void);
/** Pieces of CATALOG_CHUNK_SIZE. */
unsigned catalog_chunks(size_t size);

#endif
