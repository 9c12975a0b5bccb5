# Completion of rlds2reverb for fish, 3.0 and newer.
function _rlds2reverb_completion
    set -l words (commandline -opc)
    set -l word (string unescape -- (commandline -ct))
    test (count $word) -eq 0; and set word ""
    set -l asked (string join \x1f -- $words $word)
    env _RLDS2REVERB_COMPLETE=fish _RLDS2REVERB_WORDS=$asked $words[1] 2>/dev/null </dev/null | while read -l line
        set -l parts (string split \t -- $line)
        switch $parts[1]
            case file
                __fish_complete_path (commandline -ct)
            case dir
                __fish_complete_directories (commandline -ct) ''
            case plain open
                string join \t -- $parts[2..-1]
        end
    end
end
complete --command rlds2reverb --no-files --arguments '(_rlds2reverb_completion)'
