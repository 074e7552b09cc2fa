/* SPDX-License-Identifier: PostgreSQL */
#include "client/position.h"

#include <stddef.h>

_Static_assert(WALBUS_POSITION_SIZE == POSITION_SIZE, "one binary form");
_Static_assert(WALBUS_POSITION_TEXT_SIZE == POSITION_TEXT_SIZE, "one text form");
_Static_assert(WALBUS_INDEX_END == POSITION_INDEX_END, "one end of a transaction");

int walbus_position_compare(struct walbus_position a, struct walbus_position b)
{
    return position_compare(position_given(a), position_given(b));
}

char *walbus_position_format(struct walbus_position position, char out[WALBUS_POSITION_TEXT_SIZE])
{
    return position_format(position_given(position), out);
}

enum walbus_result walbus_position_parse(const char *text, struct walbus_position *ret)
{
    struct position p;

    if (!text || !ret || position_parse(text, &p) < 0)
        return WALBUS_BAD_ARGUMENT;
    *ret = position_shown(p);
    return WALBUS_OK;
}

void walbus_position_pack(struct walbus_position position, uint8_t out[WALBUS_POSITION_SIZE])
{
    position_encode(position_given(position), out);
}

struct walbus_position walbus_position_unpack(const uint8_t in[WALBUS_POSITION_SIZE])
{
    return position_shown(position_decode(in));
}
