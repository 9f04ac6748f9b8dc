/* Names of codes, modes and structures. */
#include "rvm_state.h"

char *rvm_return(rvm_return_t code)
{
    static const char *const names[] = {
        "RVM_EINIT", "RVM_EINTERNAL", "RVM_EIO", "RVM_EPLACEHOLDER", "RVM_ELOG", "RVM_ELOG_VERSION_SKEW",
        "RVM_EMODE", "RVM_ENAME_TOO_LONG", "RVM_ENO_MEMORY", "RVM_ENOT_MAPPED", "RVM_EOFFSET", "RVM_EOPTIONS",
        "RVM_EOVERLAP", "RVM_EPAGER", "RVM_ERANGE", "RVM_EREGION", "RVM_EREGION_DEF", "RVM_ESRC",
        "RVM_ESTATISTICS", "RVM_ESTAT_VERSION_SKEW", "RVM_ETERMINATED", "RVM_ETHREADS", "RVM_ETID",
        "RVM_ETOO_BIG", "RVM_EUNCOMMIT", "RVM_EVERSION_SKEW", "RVM_EVM_OVERLAP"};
    if (code == RVM_SUCCESS)
        return "RVM_SUCCESS";
    if (code > rvm_first_code && code < rvm_last_code)
        return (char *)names[code - rvm_first_code - 1];
    return "Invalid RVM return code";
}

char *rvm_mode(rvm_mode_t mode)
{
    static const char *const names[] = {"restore", "no_restore", "flush", "no_flush"};
    if (mode > rvm_first_mode && mode < rvm_last_mode)
        return (char *)names[mode - rvm_first_mode - 1];
    return "Invalid RVM transaction mode";
}

char *rvm_type(rvm_struct_id_t id)
{
    static const char *const names[] = {"rvm_region_t", "rvm_options_t", "rvm_tid_t", "rvm_statistics_id"};
    if (id > rvm_first_struct_id && id < rvm_last_struct_id)
        return (char *)names[id - rvm_first_struct_id - 1];
    return "Invalid RVM structure type";
}
