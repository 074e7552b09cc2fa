/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLIENT_POSITION_H
#define WALBUS_CLIENT_POSITION_H

/* The public struct walbus_position and the one inside: they differ in the order of their members, since the public
 * one must have no hole. */

#include "codec/position.h"
#include "walbus/position.h"

static inline struct position position_given(struct walbus_position p)
{
    return (struct position){p.timeline, p.lsn, p.index};
}

static inline struct walbus_position position_shown(struct position p)
{
    return (struct walbus_position){.lsn = p.lsn, .timeline = p.timeline, .index = p.index};
}

#endif
