#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#ifdef SCUMBLE_RPC
#include "ggml-rpc.h"
#endif
