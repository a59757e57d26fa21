# Runs in the seal, within its own bounds of time and memory: looks whether the agent's own commits can be taken along.
# stdout: `head COMMIT` or `unsound WHY`, then `extra COMMIT` for each other branch or stash, at last `looked`.
# Given, besides what the seal is given: HISTORY_KIB HISTORY_CPU UNPACKED. Nothing of its configuration is read.
set -u
{ ulimit -c 0; ulimit -d "$HISTORY_KIB"; ulimit -t "$HISTORY_CPU"; } 2> /dev/null
# A commit or a tree is read whole: one of gigabytes, packed to nothing, is to end the git that looks, and no more.
export GIT_ALLOC_LIMIT="$MAX_ALLOC"
git() { command git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c core.quotePath=true -c gc.auto=0 "$@"; }
TAB='	'

# All names in $GIT_DIR/sizes are of objects that are small enough, alone and together; the commits are listed apart.
is_small() {
  all=0 seen=0
  : > "$GIT_DIR/commits"
  while read -r kind size name; do
    seen=$((seen + 1))
    [ $seen -le 300 ] || break  # the shell reads byte by byte
    case $size in '' | *[!0-9]*) return 1 ;; esac
    [ "$size" -le $((MAX_KIB * 1024)) ] || return 1
    all=$((all + size))
    [ "$kind" != commit ] || printf '%s\n' "$name" >> "$GIT_DIR/commits"
  done < "$GIT_DIR/sizes"
  if [ $seen -gt 300 ]; then
    ! grep -qv '^[a-z]* [0-9]* [0-9a-f]*$' "$GIT_DIR/sizes" || return 1
    sed -n 's/^commit [0-9]* //p' "$GIT_DIR/sizes" > "$GIT_DIR/commits" || return 1
    all=$(cut -d ' ' -f 2 "$GIT_DIR/sizes" | xargs -n 4000 sh -c \
      's=0; for n; do [ "$n" -le $((MAX_KIB * 1024)) ] || s=$((UNPACKED + 1)); s=$((s + n)); done; echo $s' sh |
      xargs sh -c 's=0; for n; do s=$((s + n)); done; echo $s' sh) || return 1
  fi
  [ "${all:-x}" -le "$UNPACKED" ]
}

# A check that dies says nothing, and that is a failure: only its last word makes it a pass.
# Barred are nested repositories, and our own folder: git takes ignored files for expendable, so that a checkout of
# the branch would put an agent's ledger in the place of ours.
is_sound() {
  why="are not whole, or take more time or memory to look at than they may"
  git rev-list --objects --no-object-names "$@" "^$BASE" > "$GIT_DIR/walked" || return 1
  git cat-file --buffer --batch-check='%(objecttype) %(objectsize) %(objectname)' < "$GIT_DIR/walked" > "$GIT_DIR/sizes" || return 1
  is_small || { why="hold a file that is too large, or too much altogether"; return 1; }
  verdict=$({ git diff-tree --stdin -r -m --root --raw --no-renames < "$GIT_DIR/commits" && echo whole; } |
    sed -n -e '/^:[0-7]* 160000 /{s/.*/barred/p;q;}' -e "/^:[^$TAB]*$TAB\"\{0,1\}[.]shoal\([/\"]\|\$\)/{s/.*/barred/p;q;}" -e '$p')
  [ "$verdict" != barred ] || why="add a nested repository, or change what is Shoal's own"
  [ "$verdict" = whole ]
}

# The agent's HEAD, read from its files: its configuration may say anything.
agent_head() {
  [ -f "$AGENT_GIT/HEAD" ] || return 1
  h=$(head -c 4096 "$AGENT_GIT/HEAD" | head -n 1)
  case $h in
    'ref: '*)
      r=${h#ref: }
      if [ -f "$AGENT_GIT/$r" ]; then h=$(head -c 4096 "$AGENT_GIT/$r" | head -n 1)
      elif [ -f "$AGENT_GIT/packed-refs" ]; then
        h=$(head -c 4194304 "$AGENT_GIT/packed-refs" | while read -r a b; do [ "$b" = "$r" ] && echo "$a" && break; done)
      fi ;;
  esac
  case $h in '' | *[!0-9a-f]*) return 1 ;; esac
  [ ${#h} = ${#BASE} ] && [ "$h" != "$BASE" ] || return 1
  git cat-file -e "$h^{commit}" 2> /dev/null && git merge-base --is-ancestor "$BASE" "$h"
}

# The agent's other branches and stashes: what is a commit, and not in what is kept already.
others() {
  { find "$AGENT_GIT/refs/heads" "$AGENT_GIT/refs/tags" "$AGENT_GIT/refs/stash" -type f -exec head -qc 65 {} + |
      head -n 2000
    [ -f "$AGENT_GIT/logs/refs/stash" ] && head -c 65536 "$AGENT_GIT/logs/refs/stash" | cut -d ' ' -f 2
    [ -f "$AGENT_GIT/packed-refs" ] && head -c 1048576 "$AGENT_GIT/packed-refs" | sed -n 's/^\([0-9a-f]*\) refs.*/\1/p'; } 2> /dev/null |
    grep -x '[0-9a-f]\{40,64\}' | grep -vxF "$BASE" | sort -u | head -n 1000 > "$GIT_DIR/named"
  [ -s "$GIT_DIR/named" ] || return 1
  sed 's/$/^{commit}/' "$GIT_DIR/named" | git cat-file --batch-check='%(objectname)' | grep -x '[0-9a-f]*' | sort -u > "$GIT_DIR/others"
  [ -s "$GIT_DIR/others" ] || return 1
  { cat "$GIT_DIR/others"; echo "^$BASE"; [ -z "$head" ] || echo "^$head"; [ -z "$JOIN" ] || echo "^$JOIN"; } |
    git rev-list --stdin > "$GIT_DIR/fresh" || return 1
  # What was too dear to look at once is not looked at again.
  grep -xFf "$GIT_DIR/others" "$GIT_DIR/fresh" | grep -vxF "${unsound:--}" | sort > "$GIT_DIR/named"
  [ -s "$GIT_DIR/named" ]
}

head= unsound=
if agent_head; then
  if is_sound "$h"; then head=$h; echo "head $h"; else unsound=$h; echo "unsound $why"; fi
fi
if others; then
  if is_sound $(cat "$GIT_DIR/named"); then sed 's/^/extra /' "$GIT_DIR/named"
  else
    while read -r x; do if is_sound "$x"; then echo "extra $x"; else echo "dropped"; fi; done < "$GIT_DIR/named"
  fi
fi
echo looked
