/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_CATALOG_CHECK_H
#define WALBUS_DAEMON_CATALOG_CHECK_H

/* Whether the pages of an LMDB file are what LMDB takes them for. Pure. */

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"
#include "base/macros.h"

/** `file` is the whole file, mapped or aligned to 8 bytes; `page_size` that of the machine. 0; -EBADMSG: LMDB must not be
 *  let at it; -ENOMEM. */
int catalog_check(struct bytes file, size_t page_size) MUST_CHECK;

#endif
