# In ~/.config/fish/config.fish: train completion fish | source
function __train_words
    set -l line (commandline --cut-at-cursor --current-process | string collect)
    set -l program (string split --no-empty ' ' -- $line)[1]
    $program completion --line "$line" 2>/dev/null
end
complete --command train --no-files --keep-order --arguments '(__train_words)'
