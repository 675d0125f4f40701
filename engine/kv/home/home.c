/* SPDX-License-Identifier: Apache-2.0 */
/* The table of homes. */

#include "engine/kv/home/home.h"

static const struct home_ops *const homes[] = {&home_host, &home_disk};

int home_at(struct cache *c, enum home_moment moment, const struct kv_args *args)
{
    int r = 0;

    for (size_t i = 0; !r && i < sizeof(homes) / sizeof(homes[0]); i++) {
        r = homes[i]->at[moment] ? homes[i]->at[moment](c, args) : 0;
    }
    return r;
}

void home_begin(struct cache *c)
{
    for (size_t i = 0; i < sizeof(homes) / sizeof(homes[0]); i++) {
        if (homes[i]->begin) {
            homes[i]->begin(c);
        }
    }
}
