/* The exact JSON of a header table and of properties is read back unchanged; the natural JSON is UTF-8. */

#include "field_maker.h"
#include "message_checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct byte_source s = {data, data + size};
    struct message *m = take_message(&s);

    message_free(message_from_letter(m));
    message_free(m);
    return 0;
}
