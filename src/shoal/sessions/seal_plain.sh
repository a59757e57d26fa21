# Part of the seal, for an agent whose ignore rules or attributes take git too long or too much memory: every file is
# taken as it lies there. Which files are no work is said by rules of the base, of which those with many stars are left out.
base_rules() {
  [ ! -e "$GIT_DIR/info/exclude" ] || cat "$GIT_DIR/info/exclude"
  git ls-tree -r --name-only "$BASE" | grep -x '\([A-Za-z0-9._/-]*/\)\{0,1\}[.]gitignore' | sed 's|/\{0,1\}[.]gitignore$||' |
    LC_ALL=C sort | head -n 200 | while IFS= read -r d; do
      # Below a folder a rule with a slash is of that folder alone, any other of all below it.
      below=; [ -z "$d" ] || below="s|^\\(!*\\)/|\\1/$d/|;t;s|^\\(!*\\)\\(.*/.\\)|\\1/$d/\\2|;t;s|^!*|&/$d/**/|"
      git cat-file blob "$BASE:${d:+$d/}.gitignore" | head -c 65536 |
        sed -e '/^#/d' -e 's/\r$//' -e '/^$/d' -e '/^.\{300\}/d' -e '/\([*].*\)\{7\}/d' -e "$below"
    done | head -n 5000
}

name_all() { head -zn 50 | LC_ALL=C tr -c ' -~\0' '?' | tr '\0' '\n' | while IFS= read -r p; do say "unkept $p"; done; }

# $1 has names, $2 is their mode: no filter, no attribute and no encoding is asked.
lay_in() {
  LC_ALL=C sort -z "$1" | LC_ALL=C comm -z -12 - "$GIT_DIR/wanted" > "$1.wanted"
  [ -s "$1.wanted" ] || return 0
  if [ "$2" = 120000 ]; then
    xargs -0 -n 1 sh -c 'readlink -n -- "$0" | git hash-object -w --stdin || exit 255' < "$1.wanted" > "$1.objects"
  else  # git reads lines: a name with an end of line in it, or with a quotation mark first, is spelled as in C
    LC_ALL=C sed -z '/[\n\r]/bquote;/^"/!b;:quote;s/[\\"]/\\&/g;s/\n/\\n/g;s/\r/\\r/g;s/.*/"&"/' "$1.wanted" | tr '\0' '\n' |
      git hash-object -w --no-filters --stdin-paths > "$1.objects"
  fi || return 1
  tr '\n' '\0' < "$1.objects" | paste -z - "$1.wanted" | LC_ALL=C sed -z "s/^/$2 /" |
    git update-index --add --replace -z --index-info
}

add_plain() {
  rm -f "$GIT_INDEX_FILE.lock"
  only $((RULES_CPU * 4))  # these rules are bounded: what takes long now is the walk through the folders
  base_rules > "$GIT_DIR/rules" || die "git could not read the rules of the base"
  git ls-files -z -d > "$GIT_DIR/lost" && git update-index -z --force-remove --stdin < "$GIT_DIR/lost" || die "git could not take what is gone"
  git ls-files -z -o --exclude-from="$GIT_DIR/rules" > "$GIT_DIR/found" 2> "$GIT_DIR/said" || die "git could not list the files"
  only "$ADD_CPU"
  grep -z '/$' "$GIT_DIR/found" | name_all
  { cat "$GIT_DIR/found"; git ls-files -z; [ "$parent" = "$BASE" ] || git diff-tree -r -z --name-only --no-renames --diff-filter=AMT "$BASE" "$parent"; } |
    LC_ALL=C sort -zu > "$GIT_DIR/wanted"
  (cd "$CHANGES" && find . -xdev \( -path ./.git -o -path "./$STATE" \) -prune -o -type l -fprintf "$GIT_DIR/links" '%P\0' -o \
    -type f -size "+${MAX_KIB}k" -fprintf "$GIT_DIR/too-large" '%P\0' -o \
    -type f -perm -100 -fprintf "$GIT_DIR/programs" '%P\0' -o -type f -fprintf "$GIT_DIR/files" '%P\0') 2> "$GIT_DIR/find" ||
    only_shut || die "the files cannot be listed; the disk may be full"
  LC_ALL=C sort -z "$GIT_DIR/too-large" | LC_ALL=C comm -z -12 - "$GIT_DIR/wanted" | name_all
  lay_in "$GIT_DIR/files" 100644 && lay_in "$GIT_DIR/programs" 100755 && lay_in "$GIT_DIR/links" 120000 ||
    die "git could not take the files as they lie there"
  git diff-index --cached --raw --no-abbrev --no-renames --ignore-submodules=none "$BASE" > "$GIT_DIR/raw" ||
    die "git could not compare with the base"
  say "plain"
}
