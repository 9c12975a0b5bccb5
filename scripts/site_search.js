
// A word that no page has, and that none of theirs begins with, stands for what they have a letter away, or two if it is a long one.
// site_hooks.py appends this to the theme's worker, whose lunr it changes.
(() => {
  const { Index, Query, TokenSet } = self.lunr;
  const query = Index.prototype.query;

  function acceptLongerWords(set, seen = new Set()) {
    if (seen.has(set)) return;
    seen.add(set);
    for (const next of Object.values(set.edges)) acceptLongerWords(next, seen);
    if (set.final) set.edges["*"] = set;
  }

  Index.prototype.query = function (build) {
    const known = (set) => this.tokenSet.intersect(set).toArray();
    const meant = (clause) => {
      const word = clause.term.replace(/\*$/, "");
      if (clause.presence !== Query.presence.OPTIONAL || word.length < 4 || known(TokenSet.fromClause(clause)).length) return clause;
      for (const edits of word.length > 7 ? [1, 2] : [1]) {
        const near = TokenSet.fromFuzzyString(word, edits);
        acceptLongerWords(near);
        const terms = known(near);
        if (terms.length) return terms.map((term) => ({ ...clause, term }));
      }
      return clause;
    };
    return query.call(this, (asked) => {
      build.call(asked, asked);
      asked.clauses = asked.clauses.flatMap(meant);
    });
  };
})();
