# Completion of rlds2reverb for bash, 3.2 and newer.
_rlds2reverb_completion() {
    local kind value
    COMPREPLY=()
    while IFS=$'\t' read -r kind value; do
        case "$kind" in
            file) compopt -o filenames -o default 2>/dev/null ;;
            dir) compopt -o filenames -o dirnames 2>/dev/null ;;
            open) compopt -o nospace 2>/dev/null; COMPREPLY+=("$value") ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(_RLDS2REVERB_COMPLETE=bash _RLDS2REVERB_LINE="${COMP_LINE:0:COMP_POINT}" _RLDS2REVERB_WORD="$2" "$1" 2>/dev/null </dev/null)
}
complete -o nosort -F _rlds2reverb_completion rlds2reverb 2>/dev/null || complete -F _rlds2reverb_completion rlds2reverb
