#include "error.h"

#include <stdarg.h>
#include <stdio.h>

int spf_fail(spf_error *err, int code, const char *format, ...)
{
    int negative = code > 0 ? -code : code;
    if (err) {
        va_list args;
        err->code = negative;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return negative;
}
