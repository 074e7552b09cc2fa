/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_VERSION_H
#define WALBUS_VERSION_H

#include "walbus/macros.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The version that a program is compiled against. */
#define WALBUS_VERSION_MAJOR 0
#define WALBUS_VERSION_MINOR 1
#define WALBUS_VERSION_PATCH 0

/** Three numbers as one that compares: 0.1.0 is 100, 1.2.3 is 10203. */
#define WALBUS_VERSION_NUMBER \
    (WALBUS_VERSION_MAJOR * 10000 + WALBUS_VERSION_MINOR * 100 + WALBUS_VERSION_PATCH)

/** The same as text: "0.1.0". */
#define WALBUS_VERSION_TEXT \
    WALBUS_VERSION_JOIN_(WALBUS_VERSION_MAJOR, WALBUS_VERSION_MINOR, WALBUS_VERSION_PATCH)
#define WALBUS_VERSION_JOIN_(major, minor, patch)  WALBUS_VERSION_QUOTE_(major, minor, patch)
#define WALBUS_VERSION_QUOTE_(major, minor, patch) #major "." #minor "." #patch

/**
 * The version of the library that the program runs with, in the form of
 * WALBUS_VERSION_NUMBER. It can be newer than the one compiled against.
 * Any thread, at any time.
 */
WALBUS_PUBLIC int walbus_version_number(void);

/** The same as text ("0.1.0"); static, never NULL. Any thread, at any time. */
WALBUS_PUBLIC const char *walbus_version_text(void);

#ifdef __cplusplus
}
#endif

#endif
