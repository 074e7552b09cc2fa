/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_ENVIRONMENT_H
#define WALBUS_TESTS_UNIT_ENVIRONMENT_H

/* The variables that settings come from. A test that depends on them begins with a clean one and puts
 * nothing back. */

/** Unsets all that the settings and the places of the socket look at. */
void environment_clean(void);
void environment_set(const char *name, const char *value);

#endif
