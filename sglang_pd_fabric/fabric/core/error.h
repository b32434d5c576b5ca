/* How the core reports a failure: a negative errno and a sentence that says what was being done. */
#ifndef SPF_ERROR_H
#define SPF_ERROR_H

#include "api.h"

/* Fills *err (when given) and returns code, which is made negative. */
int spf_fail(spf_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
