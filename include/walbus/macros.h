/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_MACROS_H
#define WALBUS_MACROS_H

/* Marks that the other headers put on their functions. */

#if defined(__GNUC__)
/** Exported by libwalbus.so; everything without this mark is hidden. */
#define WALBUS_PUBLIC __attribute__((visibility("default")))
/** The result says whether it worked: the compiler warns when it is dropped. */
#define WALBUS_MUST_CHECK __attribute__((warn_unused_result))
#else
#define WALBUS_PUBLIC
#define WALBUS_MUST_CHECK
#endif

#endif
