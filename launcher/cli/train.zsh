#compdef train
# In ~/.zshrc after compinit: source <(train completion zsh); or a file _train in a folder of $fpath
_train() {
    local -a found
    found=("${(@f)$(${words[1]} completion --line "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}")
    compadd -Q -V open -S '' -- ${(M)found:#*[=./]}
    compadd -Q -V whole -- ${found:#*[=./]}
}
if [ "$funcstack[1]" = _train ]; then
    _train "$@"
else
    compdef _train train
fi
