/* SPDX-License-Identifier: PostgreSQL */
#include "client/known_struct.h"

#include <stdint.h>

bool struct_is_known(const void *given, size_t size, size_t known)
{
    const uint8_t *bytes = given;

    if (size < known || size > STRUCT_SIZE_MAX)
        return false;
    for (size_t i = known; i < size; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}
