# In ~/.bashrc: source <(train completion bash)
_train() {
    local line=${COMP_LINE:0:COMP_POINT} current before="" word
    current=${line##*[[:space:]]}
    # note: bash takes key= and its value for two words, and replaces the second only
    [[ $COMP_WORDBREAKS == *=* && $current == *=* ]] && before=${current%"${current##*=}"}
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("${word#"$before"}")
    done < <("$1" completion --line "$line" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=./] ]]; then
        compopt -o nospace
    fi
}
complete -o nosort -F _train train
