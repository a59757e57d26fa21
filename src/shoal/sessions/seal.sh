# Runs in the second, short-lived sandbox of a session: turns the files that an ended agent left into a commit and a thin pack.
# stdout: lines of facts, the line `pack`, the pack. Nothing of the agent's own configuration is read.
# Given: WS CHANGES BASE AGENT_GIT JOIN KNOWN_TREE MAX_KIB MAX_ALLOC MEMORY_KIB RULES_CPU ADD_CPU, HISTORY_* and UNPACKED for the text
# HISTORY, the text PLAIN, and GIT_DIR, GIT_WORK_TREE, GIT_INDEX_FILE of a fresh gitdir.
set -u
STATE=.shoal
exec 3>&1 1>&2
# Git is predictable, but what it is given here is not: each process dies before it takes the host's memory.
{ ulimit -c 0; ulimit -d "$MEMORY_KIB"; } 2> /dev/null  # where less is allowed already, that holds
looked= dropped=
say() { printf '%s\n' "$*" >&3; }
die() { say "failed $*"; exit 1; }
git() { command git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c core.quotePath=true -c core.protectHFS=true -c core.protectNTFS=true -c advice.addEmbeddedRepo=false -c gc.auto=0 -c core.safecrlf=false -c core.bigFileThreshold=16m -c pack.threads=2 -c pack.windowMemory=64m -c pack.deltaCacheSize=64m "$@"; }
large_below() {
  find . -xdev -type f -size "+${MAX_KIB}k" ! -path ./.git ! -path './.git/*' -exec sh -c \
    'for f; do printf ":(top,exclude,literal)%s\0" "${f#./}" || exit 1; done >> "$0"' "$1" {} +
}

# A folder that cannot be opened is told by git too, and named; everything else that stops `find` is a failure.
only_shut() { [ -s "$GIT_DIR/find" ] && ! grep -v 'Permission denied$' "$GIT_DIR/find"; }

# The shell's own soft limit holds for what it starts: git that takes a processor for too long ends with 152.
only() { { ulimit -S -t "$1" || ulimit -S -t "$(ulimit -H -t)"; } 2> /dev/null; }
add_once() {
  only "$cpu"
  git add -A --ignore-errors --pathspec-from-file="$1" --pathspec-file-nul 2> "$GIT_DIR/said"; added=$?
  only unlimited
}

# Say whether git can follow the rules that lie among the files, apart from hashing any of them.
rules_hold() {
  only "$RULES_CPU"
  git ls-files -z -o --exclude-standard > "$GIT_DIR/found" && { cat "$GIT_DIR/found"; git ls-files -z; } |
    git check-attr -z --stdin text > /dev/null
  held=$?
  only unlimited
  return $held
}

# Many bytes may take long, and so may rules; only these make git go without them: $added is then 201.
add_bounded() {
  cpu=$RULES_CPU; add_once "$1"
  [ $added = 152 ] || { [ $added -gt 1 ] && grep -q emory "$GIT_DIR/said"; } || return 0
  rm -f "$GIT_INDEX_FILE.lock"
  rules_hold || { added=201; return 0; }
  cpu=$ADD_CPU; add_once "$1"
  [ $added != 152 ] || die "the files are too many or too large: git hashed them for more than $ADD_CPU s"
}

# One file that is not in the encoding that attributes claim for it ends git's add as a whole. Such files are found one
# by one and taken as they lie there; where that does not help, every file with a claim is. $2 is the folder, for names.
add_where() {
  add_bounded "$1"; [ $added -gt 1 ] && [ $added != 201 ] || return 0
  git ls-files -z -o -m --exclude-standard | git check-attr -z --stdin working-tree-encoding | paste -zd '\t' - - - |
    grep -zv '	unspecified$' | sed -z 's/	working-tree-encoding	[^	]*$//' > "$GIT_DIR/claimed"
  # A link is not followed, and what is too large is not added either.
  head -zn 1000 "$GIT_DIR/claimed" | xargs -0 -n 1 sh -c '[ -f "$0" ] && [ ! -L "$0" ] && [ "$(stat -c %s -- "$0")" -le $((MAX_KIB * 1024)) ] || exit 0
    git -c core.bigFileThreshold=16m hash-object -w --path="$0" -- "$0" > /dev/null || printf "%s\0" "$0"' > "$GIT_DIR/denied"
  mkdir -p "$GIT_DIR/info"
  for taken in denied claimed; do
    if [ $taken = claimed ]; then echo '* !working-tree-encoding'
    else sed -z 's/[][*?\]/\\&/g; s/[\"]/\\&/g; s/\n/\\n/g; s|.*|"/&" !working-tree-encoding|' "$GIT_DIR/denied" | tr '\0' '\n'
    fi >> "$GIT_DIR/info/attributes"
    add_once "$1"; [ $added -le 1 ] || continue
    head -zn 50 "$GIT_DIR/$taken" | LC_ALL=C tr -c ' -~\0' '?' | tr '\0' '\n' | while IFS= read -r p; do say "unconverted $2$p"; done
    return 0
  done
}

# A nested repository becomes plain files: as the root of a work tree of its own, its .git is passed over by git.
take_nested() {
  case $1 in "$STATE" | "$STATE"/*) return 1 ;; esac
  rm -f "$GIT_DIR/nested"; printf '.\0' > "$GIT_DIR/nested-where" || return 1
  t=$(cd "$WS/$1" && GIT_WORK_TREE="$WS/$1" GIT_INDEX_FILE="$GIT_DIR/nested" && export GIT_WORK_TREE GIT_INDEX_FILE &&
    { large_below "$GIT_DIR/nested-where" || : > "$GIT_DIR/partly"; } &&
    { add_where "$GIT_DIR/nested-where" "$1/"; cat "$GIT_DIR/said" >&2; [ $added = 0 ] || : > "$GIT_DIR/partly"; [ $added != 201 ]; } &&
    git write-tree) || return 1
  git update-index --force-remove -- "$1" && git read-tree --prefix="$1/" "$t"
}

# A nested repository without a commit cannot be added at all, and is found among what is left.
empty_once() {
  git ls-files -o --exclude-standard --directory | grep '/$' > "$GIT_DIR/left" || return 1
  took=1
  while IFS= read -r d; do [ -e "$WS/${d}.git" ] && take_nested "${d%/}" && took=0; done < "$GIT_DIR/left"
  return $took
}

nested_once() {
  git diff-index --cached --raw --no-abbrev --no-renames --ignore-submodules=none "$BASE" > "$GIT_DIR/raw" ||
    die "git could not compare with the base"
  grep '^:[0-7]* 160000 ' "$GIT_DIR/raw" > "$GIT_DIR/links" || return 1
  while IFS='	' read -r facts path; do
    set -- $facts
    if [ "$1" = ":160000" ]; then git update-index --cacheinfo "160000,$3,$path"; say "unkept $path"
    else
      case $path in '"'*) ok=no ;; *) take_nested "$path" && ok=yes || ok=no ;; esac
      [ $ok = yes ] || { say "unkept $path"; git update-index --force-remove -- "$path" || return 1; }
    fi
  done < "$GIT_DIR/links"
}

without_history() {
  grep -vxF "$AGENT_GIT/objects" "$GIT_DIR/objects/info/alternates" > "$GIT_DIR/lenders"
  mv "$GIT_DIR/lenders" "$GIT_DIR/objects/info/alternates"
  AGENT_GIT=
}

# 0. Nothing that git opens may block: no gitdir of git's own making holds a pipe or a link, so such a history stays out;
# an ignore or attributes file that is a pipe is fed with nothing for as long as the sandbox lives.
if [ -n "$AGENT_GIT" ] && find "$AGENT_GIT" ! -type f ! -type d | grep -q .; then
  without_history; say "squashed its gitdir holds what git never puts there"
fi
# A history is taken along when it is whole, no file of it is too large, and no commit of it adds what is barred; where
# that cannot be told in time, the files are kept without it.
parent=$BASE
: > "$GIT_DIR/extras"
if [ -n "$AGENT_GIT" ]; then
  timeout -s KILL "$HISTORY_SECONDS" sh -c "$HISTORY" history > "$GIT_DIR/history"
  while read -r key value; do
    case $key in
      head) parent=$value ;;
      unsound) say "squashed its own commits $value" ;;
      extra) printf '%s\n' "$value" >> "$GIT_DIR/extras" ;;
      dropped) dropped=yes ;;
      looked) looked=yes ;;
    esac
  done < "$GIT_DIR/history"
  if [ -z "$looked$(sed -n '/^head /p;/^unsound /p' "$GIT_DIR/history")" ]; then
    say "squashed its own commits take more than $HISTORY_SECONDS s to look at"
  elif [ -z "$looked" ] || [ -n "$dropped" ]; then say dropped
  fi
  [ "$parent" != "$BASE" ] || [ -s "$GIT_DIR/extras" ] || without_history
fi
# 1. Pipes and sockets, which git passes over in silence, are named: spelled so that no name can be another fact.
# What is too large is named too, and left out before a byte of it is hashed.
(cd "$CHANGES" && find . -xdev \( -type p -o -type s \) -exec sh -c \
  'n=0; for f; do [ $n -lt 50 ] || exit 0; n=$((n + 1)); printf "special %s\n" "$(printf %s "${f#./}" | LC_ALL=C tr -c " -~" "?")" >&3; done' \
  sh {} + -type p \( -name .gitignore -o -name .gitattributes \) -exec sh -c \
  'cd "$0" && seal=$1 && shift && for f; do
    (while true > "$f"; do :; done; echo "a pipe stands where git looks for its rules, and cannot be fed"; kill "$seal") 3>&- &
  done' "$WS" "$$" {} + -o \
  -type f \( -name .gitignore -o -name .gitattributes \) -size +10240k -exec sh -c ': > "$0"' "$GIT_DIR/long" \; -o \
  -type f -size "+${MAX_KIB}k" ! -path ./.git -exec sh -c \
  'for f; do printf ":(top,exclude,literal)%s\0" "${f#./}" || exit 1; done >> "$0"' "$GIT_DIR/large" {} +) 2> "$GIT_DIR/find" || only_shut || die "the files cannot be listed; the disk may be full"

# What set-up left before the agent came is laid into the index: then only what was changed since is seen as changed.
[ ! -e "$GIT_DIR/laid-index" ] ||
  git update-index -z --index-info < "$GIT_DIR/laid-index" || die "git could not take what set-up left"
# 2. All the rest is added; what git cannot read is named afterwards. An overlay's layer says where to look at all:
# only its top entries, because below them a folder may hide what was there before.
set -- .
if [ "$CHANGES" != "$WS" ]; then
  set --
  for f in "$CHANGES"/* "$CHANGES"/.[!.]* "$CHANGES"/..?*; do
    [ -e "$f" ] || [ -L "$f" ] || continue
    [ $# -lt 500 ] || break  # each `set` copies all: 40,000 entries would take minutes
    [ "$f" = "$CHANGES/.git" ] || [ "$f" = "$CHANGES/$STATE" ] || set -- "$@" ":(top,literal)${f#"$CHANGES"/}"
  done
  # A layer that cannot be listed, or is too long for a command, is looked at as a whole.
  [ $# -gt 0 ] && [ $# -lt 500 ] || set -- .
fi
printf '%s\0' "$@" ":(top,exclude,literal)$STATE" > "$GIT_DIR/where" || die "the disk is full"
[ ! -e "$GIT_DIR/laid-links" ] || cat "$GIT_DIR/laid-links" >> "$GIT_DIR/where" || die "the disk is full"
[ ! -s "$GIT_DIR/large" ] || { cat "$GIT_DIR/large" >> "$GIT_DIR/where" && : > "$GIT_DIR/partly"; } || die "the disk is full"
# Git reads its rules whole: those of more than 10 MiB are not tried at all.
if [ -e "$GIT_DIR/long" ]; then added=201; else add_where "$GIT_DIR/where" ""; fi
rules=--exclude-standard
if [ $added = 201 ]; then
  eval "$PLAIN"
  add_plain; rules=--exclude-from=$GIT_DIR/rules; added=0
fi
if [ -s "$GIT_DIR/said" ]; then
  cat "$GIT_DIR/said"
  # git cuts off a long line of its own, with the reason: a name is all that surely follows.
  sed -n "/^warning: could not open directory '/{s///;s/': [^']*\$//;s/^/unkept /p;}" "$GIT_DIR/said" | head -n 100 | cut -b 1-1000 >&3
fi
[ $added -le 1 ] || die "git add ended with $added"
git ls-files -o -i "$rules" --directory -- "$@" > "$GIT_DIR/ignored"
[ $added = 0 ] || : > "$GIT_DIR/partly"
rounds=0
[ $rules = --exclude-standard ] || { rounds=20; rm -f "$GIT_DIR/partly"; }
while [ $rounds -lt 20 ]; do
  rounds=$((rounds + 1)); more=no
  nested_once && more=yes
  [ -e "$GIT_DIR/partly" ] && empty_once && more=yes
  [ $more = yes ] || break
done
if [ -e "$GIT_DIR/partly" ]; then
  { git ls-files -o --exclude-standard; git ls-files -m; } | head -n 200 | while IFS= read -r p; do
    if [ -p "$WS/$p" ] || [ -S "$WS/$p" ]; then say "special $p"; else say "unkept $p"; fi
  done
fi
# What is too large for a branch is told apart, unless an ignore rule names it.
[ ! -s "$GIT_DIR/large" ] || sed -z 's/^:(top,exclude,literal)/:(top,literal)/' "$GIT_DIR/large" |
  xargs -0 git ls-files -o -m --exclude-standard -- | sort -u | head -n 50 | while IFS= read -r p; do say "large $p"; done
{ [ -e "$WS/$STATE" ] || [ -L "$WS/$STATE" ]; } && [ -n "$(git ls-files -o -m -- "$STATE" | head -n 1)" ] && say "unkept $STATE"
# git passes over what lies below a submodule's entry.
if [ -e "$WS/.gitmodules" ]; then
  git ls-files -s | grep '^160000 ' | while IFS='	' read -r facts path; do
    [ -d "$CHANGES/$path" ] && [ -n "$(ls -A "$CHANGES/$path" | head -n 1)" ] && say "unkept $path/"
  done
fi
# git does not look into a repository that set-up made: where the agent changed something in it, that is named.
[ ! -s "$GIT_DIR/laid-links" ] || xargs -0 -n 1 sh -c 'cd "$WS/${0#*)}" || exit 0
  [ -z "$(find . -xdev -name .git -prune -o -cnewer "$GIT_DIR/laid-links" -print | head -n 1)" ] ||
    printf "unkept %s/\n" "$(printf %s "${0#*)}" | LC_ALL=C tr -c " -~" "?")" >&3' < "$GIT_DIR/laid-links"
[ ! -s "$GIT_DIR/ignored" ] || say "ignored $(wc -l < "$GIT_DIR/ignored")"

# What is as set-up left it goes out again, so that it is as in the base.
if [ -e "$GIT_DIR/laid-same" ]; then
  git ls-files -s -z | LC_ALL=C sort -z | LC_ALL=C comm -z -12 - "$GIT_DIR/laid-same" | cut -z -f 2- > "$GIT_DIR/undone" &&
    LC_ALL=C sort -z "$GIT_DIR/laid-gone" > "$GIT_DIR/gone" &&
    # Neither a file nor a folder now: each file that there is, and every folder above it, is taken off.
    git ls-files -z | LC_ALL=C sed -z -n ':up;p;s|/[^/]*$||;tup' | LC_ALL=C sort -zu |
      LC_ALL=C comm -z -13 - "$GIT_DIR/gone" >> "$GIT_DIR/undone" || die "what set-up left cannot be told from the rest"
  if [ -s "$GIT_DIR/undone" ]; then
    git ls-files -z | LC_ALL=C sort -z > "$GIT_DIR/before" && LC_ALL=C sort -zu "$GIT_DIR/undone" > "$GIT_DIR/meant" &&
      GIT_LITERAL_PATHSPECS=1 command git restore --staged --source="$BASE" --pathspec-from-file="$GIT_DIR/undone" --pathspec-file-nul ||
      die "git could not leave out what set-up left"
    # A file of the agent's in the place of a folder that set-up took away went with that: it comes back.
    git ls-files -z | LC_ALL=C sort -z | LC_ALL=C comm -z -23 "$GIT_DIR/before" - |
      LC_ALL=C comm -z -23 - "$GIT_DIR/meant" > "$GIT_DIR/dropped" &&
      git update-index --add --replace -z --stdin < "$GIT_DIR/dropped" || die "git could not take the agent's files back"
  fi
  git diff-index --cached --raw --no-abbrev --no-renames --ignore-submodules=none "$BASE" > "$GIT_DIR/raw" ||
    die "git could not compare with the base"
fi

# 3. One commit on top of the agent's own history, where that is sound.
# A commit that the host made in a linked worktree meanwhile comes before ours, or beside the agent's own.
[ -n "$JOIN" ] && [ "$parent" = "$BASE" ] && { parent=$JOIN; JOIN=; }
# What the agent committed is its work, though an ignore rule may name it.
if [ "$parent" != "$BASE" ] && [ $rules = --exclude-standard ]; then
  git diff-tree -r -z --name-only --no-renames --diff-filter=AMT "$BASE" "$parent" |
    git update-index --add --remove -z --stdin || die "git could not take the files of the agent's own commits"
fi
tip=$parent
if [ "$parent" = "$BASE" ] && [ -z "$JOIN" ]; then
  [ -s "$GIT_DIR/raw" ] && changed=yes || changed=no
else
  git diff-index --cached --quiet "$parent" && changed=no || changed=yes
fi
if [ $changed = yes ] || [ -n "$JOIN" ]; then
  tree=$(git write-tree) || die "git could not write the tree"
  [ "$tree" != "$KNOWN_TREE" ] || { say none; exit 0; }
  tip=$(git commit-tree "$tree" -p "$parent" ${JOIN:+-p "$JOIN"} -F "$GIT_DIR/message") || die "git could not commit"
fi

# 4. All that is kept goes out as one pack.
if [ "$tip" = "$BASE" ] && [ ! -s "$GIT_DIR/extras" ]; then
  say none; exit 0
fi
say "tip $tip"
while read -r x; do say "extra $x"; done < "$GIT_DIR/extras"
say pack
# Packing asks attributes about each name: away from the files and their index there are none.
mkdir "$GIT_DIR/empty" && cd "$GIT_DIR/empty" || exit 1
export GIT_WORK_TREE="$GIT_DIR/empty" GIT_INDEX_FILE="$GIT_DIR/empty/index"
{ echo "$tip"; [ ! -s "$GIT_DIR/extras" ] || cat "$GIT_DIR/extras"; echo "^$BASE"; } | git pack-objects --revs --stdout --thin -q >&3
