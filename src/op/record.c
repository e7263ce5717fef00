/* An op's execute, recorded. */
#include <stdlib.h>

#include "base/memory.h"
#include "op/op.h"

struct moert_op_recording {
    moert_recording *launches;
};

moert_status moert_op_record(moert_op *op, const moert_op_buffers *buffers,
                             moert_op_recording **recording) {
    moert_op_recording *made;
    moert_status status;
    if (!op->backend->records)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: backend is '%s'; portable, to be recorded",
                          moert_op_kind_name(op->options.kind), op->backend->name);
    MOERT_TRY(moert_op_check_buffers(op, buffers));
    MOERT_TRY(moert_op_compile(op));
    MOERT_TRY(MOERT_NEW(&made));
    MOERT_TRY_OR(release, moert_recording_start(op->device, &made->launches));
    MOERT_TRY_OR(release, moert_op_execute(op, buffers));
    MOERT_TRY_OR(release, moert_recording_stop(made->launches));
    *recording = made;
    return MOERT_OK;
release:
    moert_op_recording_destroy(made);
    return status;
}

moert_status moert_op_replay(moert_op_recording *recording) {
    MOERT_TRY(moert_recording_play(recording->launches));
    return MOERT_OK;
}

void moert_op_recording_destroy(moert_op_recording *recording) {
    if (recording == NULL)
        return;
    moert_recording_destroy(recording->launches);
    free(recording);
}
