"""The requirements of a proof, the measured values, and whether they suffice: a line each, as soon as it is known."""


class Verdicts:
    """document: what else a proof wants to be written down."""

    def __init__(self, title):
        self.title = title
        self.rows = []
        self.document = {}
        print(f"{title}\n  {'':5}  {'what':56}  {'asked':>18}  measured", flush=True)

    def add(self, what, asked, measured, held):
        """held: None for what is only told."""
        self.rows.append((what, asked, measured, held))
        word = {None: "", True: "good", False: "SHORT"}[held if held is None else bool(held)]
        print(f"  {word:5}  {what:56}  {asked:>18}  {measured}", flush=True)

    def least(self, what, value, limit, form="{:.2f}"):
        self.add(what, "at least " + form.format(limit), form.format(value), value >= limit)

    def most(self, what, value, limit, form="{:.2f}"):
        self.add(what, "at most " + form.format(limit), form.format(value), value <= limit)

    def exactly(self, what, value, wanted):
        self.add(what, str(wanted), str(value), value == wanted)

    def tell(self, what, text):
        self.add(what, "", text, None)

    def n_short(self):
        return sum(held is False for *_, held in self.rows)
