/* SPDX-License-Identifier: PostgreSQL */
/*
 * LMDB trusts its file. A flipped bit in a page makes it divide by zero, follow a pointer that is none, not find what
 * is there, or give a page away that is in use; it has no checksums that could tell. The catalog is small
 * and opened once, so its pages are all looked at before: as data version 1 has them, that of LMDB 0.9,
 * and as catalog.c uses them (one database, no duplicates, no values on pages of their own in it).
 *
 *   page      number (size_t) | u16 | u16 flags | u16 lower, u16 upper, or u32 pages of a long value
 *             u16 offsets of nodes, up to `lower` | … | nodes, from `upper` on
 *   node      u32 size of the value | u16 flags | u16 size of the key | key | value
 *             in a branch the first six bytes are the number of the page below
 *   meta      pages 0 and 1: a page's header, then struct meta; the one with the higher transaction counts
 *
 * Two trees: the entries, by bytes, and the free pages, by transaction: each value
 * there is a count and so many page numbers, falling. Walking both says of each page whether it is in use or free;
 * no page may be both, or twice. Keys must rise, from leaf to leaf, and what stands in the branches must lie
 * between its leaves: then a look-up finds what a walk finds.
 */
#include "catalog_check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_HEADER (sizeof(size_t) + 8)
#define NODE_HEADER 8u
#define NO_PAGE     SIZE_MAX /* P_INVALID */

#define PAGE_BRANCH   0x01u
#define PAGE_LEAF     0x02u
#define PAGE_OVERFLOW 0x04u
#define PAGE_META     0x08u
#define NODE_BIG      0x01u /* F_BIGDATA: its value is the number of a page with it */

#define META_MAGIC   0xBEEFC0DEu
#define META_VERSION 1u
#define DEPTH_MAX    32u /* CURSOR_STACK */

struct tree {
    uint32_t page_size; /* of the first of the two; unused in the other */
    uint16_t flags, depth;
    size_t branches, leaves, overflows, entries, root;
};

struct meta {
    uint32_t magic, version;
    size_t address, map_size;
    struct tree trees[2]; /* free pages, entries */
    size_t last_page, transaction;
};

struct check {
    struct bytes file;
    size_t page_size, n_pages; /* that may be in use */
    bool *seen;                /* each page: in use, or free */
    bool frees;                /* it is the tree of free pages */
    struct bytes last, least;  /* the leaf's key before; what the next must not be below (data NULL: none) */
    size_t entries;
};

static uint16_t get_u16(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static size_t get_size(const uint8_t *p)
{
    size_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

/* Two u16 that LMDB reads as one number, the lower half first on machines where that is so. */
static uint32_t get_u32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static size_t child_of(const uint8_t *node)
{
    size_t page = get_u32(node);

#if SIZE_MAX > UINT32_MAX
    page |= (size_t)get_u16(node + 4) << 32;
#endif
    return page;
}

/* <0, 0, >0: by bytes, or as transactions' numbers. */
static int compare(const struct check *c, struct bytes a, struct bytes b)
{
    if (c->frees) {
        size_t x = get_size(a.data), y = get_size(b.data);

        return x < y ? -1 : x > y;
    }
    size_t n = MIN(a.size, b.size);
    int r = n ? memcmp(a.data, b.data, n) : 0;
    return r ? r : (a.size < b.size ? -1 : a.size > b.size);
}

/* Notes that a page is in use or free. */
static bool claim(struct check *c, size_t page)
{
    if (page < 2 || page >= c->n_pages || c->seen[page])
        return false;
    c->seen[page] = true;
    return true;
}

/* A value on pages of its own. */
static bool claim_big(struct check *c, size_t page, size_t size, const uint8_t **ret)
{
    if (page < 2 || page >= c->n_pages)
        return false;
    const uint8_t *at = c->file.data + page * c->page_size;
    size_t pages = get_u32(at + sizeof(size_t) + 4);
    if (get_size(at) != page || get_u16(at + sizeof(size_t) + 2) != PAGE_OVERFLOW || pages == 0 ||
        pages > c->n_pages - page || size > pages * c->page_size - PAGE_HEADER)
        return false;
    for (size_t i = 0; i < pages; i++)
        if (!claim(c, page + i))
            return false;
    *ret = at + PAGE_HEADER;
    return true;
}

static bool check_free_pages(struct check *c, const uint8_t *value, size_t size)
{
    size_t above = SIZE_MAX;

    if (size < sizeof(size_t))
        return false;
    size_t n = get_size(value);
    if (n > size / sizeof(size_t) - 1)
        return false;
    for (size_t i = 1; i <= n; i++) {
        size_t page = get_size(value + i * sizeof(size_t));

        if (page >= above || !claim(c, page))
            return false;
        above = page;
    }
    return true;
}

static bool check_key(const struct check *c, struct bytes key)
{
    if (c->frees ? key.size != sizeof(size_t) : key.size == 0)
        return false;
    return (!c->last.data || compare(c, key, c->last) > 0) && (!c->least.data || compare(c, key, c->least) >= 0);
}

static bool check_leaf_node(struct check *c, const uint8_t *node, size_t room)
{
    size_t size = get_u32(node), key_size = get_u16(node + 6);
    unsigned flags = get_u16(node + 4);

    if (key_size > room - NODE_HEADER)
        return false;
    struct bytes key = {node + NODE_HEADER, key_size};
    const uint8_t *value = key.data + key_size;
    room -= NODE_HEADER + key_size;
    if (!check_key(c, key))
        return false;
    if (flags == NODE_BIG && c->frees) {
        if (room < sizeof(size_t) || !claim_big(c, get_size(value), size, &value))
            return false;
    } else if (flags || size > room) {
        return false;
    }
    c->last = key;
    c->least.data = NULL;
    c->entries++;
    return !c->frees || check_free_pages(c, value, size);
}

static bool check_page(struct check *c, size_t page, unsigned depth);

static bool check_branch_node(struct check *c, const uint8_t *node, size_t room, bool first, unsigned depth)
{
    struct bytes key = {node + NODE_HEADER, get_u16(node + 6)};

    if (key.size > room - NODE_HEADER)
        return false;
    if (!first) { /* the first one's key means nothing */
        if (!check_key(c, key))
            return false;
        c->least = key;
    }
    return check_page(c, child_of(node), depth - 1);
}

static bool check_page(struct check *c, size_t page, unsigned depth)
{
    if (!claim(c, page))
        return false;
    const uint8_t *at = c->file.data + page * c->page_size;
    size_t lower = get_u16(at + sizeof(size_t) + 4), upper = get_u16(at + sizeof(size_t) + 6);
    bool branch = depth > 1;
    if (get_size(at) != page || get_u16(at + sizeof(size_t) + 2) != (branch ? PAGE_BRANCH : PAGE_LEAF) ||
        lower < PAGE_HEADER || lower > upper || upper > c->page_size || (lower - PAGE_HEADER) % 2)
        return false;
    size_t n = (lower - PAGE_HEADER) / 2;
    if (n < (branch ? 2 : 1))
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t offset = get_u16(at + PAGE_HEADER + i * 2), room;

        if (offset < upper || offset % 2 || offset > c->page_size - NODE_HEADER)
            return false;
        room = c->page_size - offset;
        if (branch ? !check_branch_node(c, at + offset, room, i == 0, depth)
                   : !check_leaf_node(c, at + offset, room))
            return false;
    }
    return true;
}

static bool check_tree(struct check *c, const struct tree *t, bool frees)
{
    c->frees = frees;
    c->entries = 0;
    c->last.data = c->least.data = NULL;
    if (t->root == NO_PAGE)
        return t->entries == 0 && t->depth == 0;
    return t->depth > 0 && t->depth <= DEPTH_MAX && check_page(c, t->root, t->depth) && c->entries == t->entries;
}

/* Of the tree of free pages: MDB_INTEGERKEY, and with it how the file was opened: MDB_NOSUBDIR. */
#define FREE_TREE_FLAGS 0x4008u

static bool meta_is_sound(struct bytes file, size_t page_size, size_t i, struct meta *ret)
{
    const uint8_t *at = file.data + i * page_size;

    memcpy(ret, at + PAGE_HEADER, sizeof *ret);
    return get_u16(at + sizeof(size_t) + 2) == PAGE_META && ret->magic == META_MAGIC && ret->version == META_VERSION &&
           ret->address == 0 && ret->map_size == file.size && ret->trees[0].page_size == page_size &&
           ret->trees[0].flags == FREE_TREE_FLAGS && ret->trees[1].flags == 0 &&
           ret->last_page < file.size / page_size;
}

int catalog_check(struct bytes file, size_t page_size)
{
    struct meta metas[2];

    for (size_t i = 0; i < 2; i++)
        if (file.size < 2 * page_size || !meta_is_sound(file, page_size, i, &metas[i]))
            return -EBADMSG;
    const struct meta *m = &metas[metas[1].transaction > metas[0].transaction];
    struct check c = {.file = file, .page_size = page_size, .n_pages = m->last_page + 1};
    c.seen = calloc(c.n_pages, sizeof *c.seen);
    if (!c.seen)
        return -ENOMEM;
    bool sound = check_tree(&c, &m->trees[1], false) && check_tree(&c, &m->trees[0], true);
    free(c.seen);
    return sound ? 0 : -EBADMSG;
}
