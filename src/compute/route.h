/* route.h: which experts a row uses, and with what weights. */
#ifndef COMPUTE_ROUTE_H
#define COMPUTE_ROUTE_H

#include "compute/backend.h"

/* logits [n_experts] → expert, weight [n_used]; scratch [2 * n_experts]. The row alone decides. */
void route_row(const route_args *a, const float *logits, int32_t *expert, float *weight,
               float *scratch);

#endif
