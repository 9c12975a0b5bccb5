#compdef rlds2reverb
# Completion of rlds2reverb for zsh, 5 and newer.
_rlds2reverb_completion() {
    local line kind value help asked
    local -a parts plain plain_shown open open_shown
    asked="${(pj:\x1f:)${(@Q)words[1,CURRENT]}}"
    while IFS= read -r line; do
        parts=("${(@ps:\t:)line}")
        kind="$parts[1]" value="$parts[2]" help="$parts[3]"
        case "$kind" in
            file) _path_files ;;
            dir) _path_files -/ ;;
            open) open+=("$value"); open_shown+=("$value${help:+  -- $help}") ;;
            plain) plain+=("$value"); plain_shown+=("$value${help:+  -- $help}") ;;
        esac
    done < <(_RLDS2REVERB_COMPLETE=zsh _RLDS2REVERB_WORDS="$asked" "${(Q)words[1]}" 2>/dev/null </dev/null)
    (( $#plain )) && compadd -l -d plain_shown -a plain
    (( $#open )) && compadd -S '' -l -d open_shown -a open
}
if [[ "$funcstack[1]" == _rlds2reverb ]]; then
    _rlds2reverb_completion "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _rlds2reverb_completion rlds2reverb
fi
