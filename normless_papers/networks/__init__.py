"""Networks, batches and forward passes that artefacts measure, as the papers print them."""
